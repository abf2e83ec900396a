"""What `rabbitmqctl` 3.10 prints, read."""

from __future__ import annotations

from bench.failover.rabbit import Followers, QueueRow, queue_row

MIRRORED = "classic.q\t<bench1@q1.1669.562.0>\t[<bench2@q2.1.562.0>, <bench3@q3.1.5.0>]\t\t"
QUORUM = "quorum.q\t<bench2@q2.1669.562.0>\t\tbench2@q2\t[bench1@q1, bench2@q2, bench3@q3]"


def test_whole_queues_and_their_masters() -> None:
    assert queue_row(MIRRORED) == QueueRow("classic.q", "q1", is_whole=True)
    assert queue_row(QUORUM) == QueueRow("quorum.q", "q2", is_whole=True)


def test_a_queue_that_lacks_a_replica_is_not_whole() -> None:
    assert not queue_row("classic.q\t<bench1@q1.1.1.0>\t[<bench2@q2.1.562.0>]\t\t").is_whole
    assert not queue_row("classic.q\t<bench1@q1.1.1.0>\t[]\t\t").is_whole
    assert not queue_row("quorum.q\t<bench2@q2.1.1.0>\t\tbench2@q2\t[bench1@q1]").is_whole


def test_a_queue_without_a_master_is_not_whole() -> None:
    assert queue_row("quorum.q\t\t\t\t[bench1@q1, bench2@q2, bench3@q3]") == QueueRow(
        "quorum.q", "", is_whole=False
    )


def members(*indexes: object) -> list[dict[str, object]]:
    return [{"Commit Index": index} for index in indexes]


def test_a_member_that_is_behind_or_silent_has_not_caught_up() -> None:
    assert Followers().caught_up(members(10_000, 10_000, 10_000))
    assert not Followers().caught_up(members(10_000, 10_000, 9_999))
    assert not Followers().caught_up(members(10_000, 10_000, ""))
    assert not Followers().caught_up(members(10_000, 10_000))


def test_messages_that_are_published_meanwhile_need_not_be_everywhere() -> None:
    followers = Followers()
    assert not followers.caught_up(members(10_000, 10_000, 100))
    assert not followers.caught_up(members(10_900, 10_900, 9_999))
    assert followers.caught_up(members(11_900, 11_900, 10_000))
