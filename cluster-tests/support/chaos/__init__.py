"""A cluster of real processes in network namespaces, and faults by seed: `make chaos`.

    python -m chaos --minutes 10 --seed 7

`run.py` plays it; `hands.py` carries out the faults; `load.py` are the clients, who write the
history; `figures.py`, `picture.py` and `report.py` say how it went.
"""
