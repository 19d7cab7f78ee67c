"""While the database is prepared, `make up` waits without a limit and prints reminders."""

from acmeweb.services.instance import WaitReminder


class Clock:
    def __init__(self):
        self.at = 0.0

    def __call__(self):
        return self.at


def answered_at(tmp_path, *moments):
    (tmp_path / "prepare.log").write_text("Running migrations:\n  Applying jobs.0071_waiting_limits...\n")
    clock, said = Clock(), []
    waiting = WaitReminder(tmp_path / "prepare.log", said.append, every_s=30, monotonic=clock)
    for clock.at in moments:
        waiting.remind_if_due()
    return said


def test_short_preparation_prints_no_reminder(tmp_path):
    assert answered_at(tmp_path, 1, 10, 29) == []


def test_a_long_preparation_is_reported_every_half_minute_with_the_end_of_its_log(tmp_path):
    said = answered_at(tmp_path, 29, 30, 31, 60, 3600)

    assert [line.split(" s. ")[0].rsplit(" ", 1)[1] for line in said] == ["30", "60", "3600"]
    assert said[0].endswith("ends: Applying jobs.0071_waiting_limits...")


def test_reminder_reports_an_empty_log(tmp_path):
    clock, said = Clock(), []
    waiting = WaitReminder(tmp_path / "missing.log", said.append, every_s=30, monotonic=clock)
    clock.at = 31

    waiting.remind_if_due()

    assert said[0].endswith("it is still empty")
