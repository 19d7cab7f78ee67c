"""Simulated time: the order of events."""

from scheduling.event_queue import EventQueue


def noted(notes, name):
    return lambda subject, now: notes.append((name, now))


def test_events_of_one_time_go_by_priority_and_then_in_the_order_of_planning():
    queue, notes = EventQueue(), []
    queue.at(5.0, noted(notes, "last"), priority=1)
    queue.at(5.0, noted(notes, "second"))
    queue.at(5.0, noted(notes, "third"))
    queue.at(2.0, noted(notes, "first"), priority=7)

    queue.run()

    assert notes == [("first", 2.0), ("second", 5.0), ("third", 5.0), ("last", 5.0)]
    assert queue.planned == 4


def test_an_event_may_plan_another_one_for_its_own_time():
    queue, notes = EventQueue(), []
    queue.at(1.0, lambda subject, now: queue.at(now, noted(notes, "follows")))
    queue.at(1.0, noted(notes, "was planned before"))

    queue.run_until(1.0)

    assert notes == [("was planned before", 1.0), ("follows", 1.0)]


def test_later_events_stay_planned():
    queue, notes = EventQueue(), []
    queue.at(1.0, noted(notes, "now"))
    queue.at(2.0, noted(notes, "later"), "subject", priority=3)

    queue.run_until(1.5)

    assert notes == [("now", 1.0)]
    assert (queue.next_time, queue.next_subject(3), queue.next_subject(0)) == (2.0, "subject", None)


def test_a_dropped_event_does_not_happen():
    queue, notes = EventQueue(), []
    queue.at(1.0, noted(notes, "dropped"))

    queue.drop_next()
    queue.run()

    assert notes == []
    assert (queue.next_time, bool(queue)) == (float("inf"), False)


def test_an_event_is_called_with_what_it_is_about():
    queue, notes = EventQueue(), []
    queue.at(1.0, lambda subject, now: notes.append((subject, now)), "a job")

    queue.run()

    assert notes == [("a job", 1.0)]


def test_due_events_are_taken_with_those_planned_meanwhile():
    queue, taken = EventQueue(), []
    first, second = noted([], "first"), noted([], "second")
    queue.at(1.0, first, "a")
    queue.at(9.0, first, "c")

    for event, subject in queue.take_due(5.0):
        taken.append((event, subject))
        if subject == "a":
            queue.at(4.0, second, "b")

    assert taken == [(first, "a"), (second, "b")] and queue.next_time == 9.0
