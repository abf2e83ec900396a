"""From a queue to a Delta table and to a plot, step by step, as one would in a notebook.

    make cluster
    pip install 'ringmq[pipeline]' matplotlib
    python examples/pipeline/queue_to_table.py FOLDER [HOST:PORT ...]

Each `# %%` begins a cell: most editors run them one at a time.
"""

# %% The cluster, and a folder that isn't there yet.

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from pyspark.sql import functions as f

import ringmq
from ringmq_pipeline.jobs.decoding import Decoding
from ringmq_pipeline.jobs.ingest import Ingest, ingest
from ringmq_pipeline.session import spark_session
from ringmq_pipeline.sinks import sink_for

folder = Path(sys.argv[1]).absolute()
seeds = ",".join(sys.argv[2:] or ["127.0.0.1:7801", "127.0.0.1:7802", "127.0.0.1:7803"])
QUEUE = "example.orders"
ORDERS = 5000
folder.mkdir(parents=True)

# %% Orders are published, and two of the messages are no orders.

chance = random.Random(1)
orders = [
    {"id": number, "country": chance.choice("ABC"), "amount": round(chance.expovariate(0.02), 2)}
    for number in range(ORDERS)
]
bodies = [json.dumps(order).encode() for order in orders]
client = ringmq.connect_sync(seeds)
client.declare_queue(QUEUE)
with client.publisher(QUEUE) as publisher:
    publisher.publish_batch([*bodies, b"no JSON", b"{half"])

# %% Spark moves them to a table. What can't be read as an order goes to a table of its own.

with spark_session("queue to table", master="local[2]") as spark:
    job = Ingest(
        source={"endpoints": seeds, "queues": QUEUE},
        table=sink_for("delta", folder / "orders"),
        table_folder=folder / "orders",
        checkpoint=folder / "checkpoint",
        decoding=Decoding.JSON,
        value_schema="id BIGINT, country STRING, amount DOUBLE",
        quarantine=sink_for("delta", folder / "unreadable"),
    )
    moved = ingest(spark, job)
    print(f"{moved.rows} orders are in the table, {moved.rows_quarantined} are quarantined")
    left = client.queue(QUEUE).messages_ready
    print(f"{left} messages are left in the queue")
    client.delete_queue(QUEUE)
    client.close()

    # %% Any tool that knows Delta reads the table. Spark itself is content with its files.

    from deltalake import DeltaTable

    files = DeltaTable(folder / "orders").file_uris()
    table = spark.read.parquet(*files)
    by_country = (
        table.groupBy("value.country")
        .agg(f.count("*").alias("orders"), f.round(f.sum("value.amount"), 2).alias("amount"))
        .orderBy("country")
        .collect()
    )
    for row in by_country:
        print(f"{row.country}: {row.orders} orders, {row.amount}")

# %% The plot.

import matplotlib  # noqa: E402 - a cell imports what it needs

matplotlib.use("Agg")

from matplotlib import pyplot  # noqa: E402

pyplot.bar([row.country for row in by_country], [row.amount for row in by_country])
pyplot.title("amount by country")
pyplot.savefig(folder / "orders.png")
print(f"plot: {folder / 'orders.png'}")
