"""Fixtures of the container tests. Without an engine the tests are skipped, with the reason."""

from collections.abc import Generator, Iterator

import docker
import pytest
from base_image import base_tag as debian_base_tag
from base_image import ensure_base_image, has_image, why_not_buildable
from containers.cluster import Cluster
from containers.engine import not_run, remove_dead_runs, why_no_engine
from containers.workload import REGISTRY_BASE, REGISTRY_ETCD
from docker.errors import APIError
from ringmq_images import NODE, SPARK, build_image


@pytest.fixture(scope="session")
def engine() -> Iterator[docker.DockerClient]:
    """A connection to the Docker engine, from which the leftovers of killed runs are removed
    first."""
    reason = why_no_engine()
    if reason is not None:
        not_run(reason)
    client = docker.from_env()
    try:
        remove_dead_runs(client)
        yield client
    finally:
        client.close()


@pytest.fixture(scope="session")
def images(engine: docker.DockerClient) -> tuple[str, str]:
    """The base of the nodes' image and the image of etcd.

    Debian's, if it is there or can be built here; else the ones of a registry.
    """
    if has_image(debian_base_tag()) or why_not_buildable() is None:
        base = ensure_base_image()
        return base, base
    for image in (REGISTRY_BASE, REGISTRY_ETCD):
        try:
            engine.images.get(image)
        except APIError:
            try:
                engine.images.pull(image)
            except APIError as error:
                not_run(f"no base image: {why_not_buildable()}, and no registry: {error}")
    return REGISTRY_BASE, REGISTRY_ETCD


@pytest.fixture(scope="session")
def base_image(images: tuple[str, str]) -> str:
    """An image with Python."""
    return images[0]


@pytest.fixture(scope="session")
def etcd_image(images: tuple[str, str]) -> str:
    """An image with etcd."""
    return images[1]


@pytest.fixture(scope="session")
def node_image(base_image: str) -> str:
    """The image of this checkout, built by `deploy/Dockerfile`."""
    return build_image(NODE, base_image, "ringmq:test")


@pytest.fixture(scope="session")
def spark_image(base_image: str) -> str:
    """The image of this checkout with Spark, built by `deploy/spark.Dockerfile`: 500 MB of wheels,
    for tests that are evidence."""
    return build_image(SPARK, base_image, "ringmq-spark:test")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the members' states and last lines to the report of a failed test."""
    report = yield
    if report.when == "call" and report.failed and isinstance(item, pytest.Function):
        clusters = {id(v): v for v in item.funcargs.values() if isinstance(v, Cluster)}
        for cluster in clusters.values():
            report.sections.append(("cluster", cluster.report()))
    return report
