"""What a mirror knows of the confirms of its master: a new master without a quorum has to know."""

from __future__ import annotations

from played_ring import LATER, A, B, PlayedRing, ring_of_three, view

from ringmq_gm.core.events import Send, Tick, ViewLearned, Watermarks


def safe(ring: PlayedRing) -> list[int]:
    return [ring.members[name].ops.safe for name in "abc"]


def confirmed_ring() -> PlayedRing:
    """Op 1 is confirmed, 2 is with all and on the disks of a and b, 3 is with nobody but a."""
    ring = ring_of_three()
    ring.multicast("a", b"1", b"2")
    ring.run()
    ring.persist(2, "a", "b")
    ring.persist(1, "c")
    ring.run()
    return ring


def test_the_next_op_takes_along_how_far_all_is_safe() -> None:
    ring = confirmed_ring()
    assert safe(ring) == [1, 0, 0]
    ring.multicast("a", b"3")
    ring.run()
    assert safe(ring) == [1, 1, 1]


def test_an_op_alone_costs_four_frames() -> None:
    """Two carry it, with `safe` of the op before; b and then c say that it is on their disks.

    A mirror that sent its op on before it looked at `safe` told that in one frame more.
    """
    ring = ring_of_three()
    for number in (1, 2, 3):
        already = {name: len(effects) for name, effects in ring.done.items()}
        ring.multicast("a", b"one")
        ring.run()
        for name in "abc":
            ring.persist(number, name)
            ring.run()
        sent = [
            (name, effect.node, type(effect.frame).__name__)
            for name, effects in ring.done.items()
            for effect in effects[already[name] :]
            if isinstance(effect, Send)
        ]
        assert sent == [
            ("a", "b", "OpFrame"),
            ("b", "c", "OpFrame"),
            ("b", "c", "MarksFrame"),
            ("c", "a", "MarksFrame"),
        ]


def test_a_quiet_master_says_it_after_a_while() -> None:
    ring = confirmed_ring()
    ring.step("a", Tick(), now=LATER)
    ring.run()
    assert safe(ring) == [1, 1, 1]
    # All have received op 2 long since: that it is safe now is worth a frame of its own.
    ring.persist(2, "c")
    ring.run()
    ring.step("a", Tick(), now=2 * LATER)
    ring.run()
    assert safe(ring) == [2, 2, 2]
    assert ring.members["a"].next_deadline() is None


def test_a_new_master_without_a_quorum_knows_what_was_confirmed() -> None:
    ring = confirmed_ring()
    ring.step("a", Tick(), now=LATER)
    ring.run()
    ring.step("b", ViewLearned(view(2, B)))
    member = ring.members["b"]
    assert not member.has_quorum
    assert (member.ops.safe, member.ops.last) == (1, 2)
    assert not [effect for effect in ring.done["b"] if isinstance(effect, Watermarks)]


def test_nothing_is_called_safe_in_a_view_without_a_quorum() -> None:
    ring = confirmed_ring()
    ring.step("a", ViewLearned(view(2, A)))
    ring.multicast("a", b"3")
    ring.persist(3, "a")
    ring.run()
    assert ring.members["a"].ops.safe == 1
