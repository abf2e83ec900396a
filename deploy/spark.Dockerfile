# A Spark master, a Spark worker, or a verb of `ringmq-pipeline`. deploy/compose.yaml runs it as all
# three, with the profile `spark`. The driver and the workers have to be of one image: Spark wants the
# same Python, and the same ringmq, on both sides.
#
#     docker build -t ringmq-spark -f deploy/spark.Dockerfile .
#
# Java comes from PyPI, as everywhere: docs/decisions/0072-java-comes-from-pypi.md.
ARG BASE=python:3.12-slim

FROM ${BASE} AS build
# The dependencies have a layer of their own, which a change of our code leaves valid.
COPY pyproject.toml /src/
RUN set -eu; cd /src; \
    python3 -m venv /opt/ringmq; \
    python3 -c 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; print(*project["dependencies"], *project["optional-dependencies"]["pipeline"], sep="\n")' >requirements.txt; \
    /opt/ringmq/bin/pip install --no-cache-dir -r requirements.txt
COPY . /src
RUN /opt/ringmq/bin/pip install --no-cache-dir --no-deps /src

FROM ${BASE}
# Spark's own scripts want bash and ps.
RUN set -eu; apt-get update; apt-get install --yes --no-install-recommends bash procps; \
    rm -rf /var/lib/apt/lists/*
# The uid of the nodes' image. /lake has the tables and checkpoints, /work what workers leave.
RUN useradd --system --uid 7800 --user-group --home-dir /work --shell /usr/sbin/nologin ringmq \
    && install -d -o ringmq -g ringmq -m 0750 /lake /work
COPY --from=build /opt/ringmq /opt/ringmq
COPY deploy/spark_daemon.py /opt/ringmq/bin/ringmq-spark
ENV PATH=/opt/ringmq/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONUNBUFFERED=1
USER ringmq
WORKDIR /work
VOLUME /lake
CMD ["ringmq-pipeline", "--help"]
