"""The table of plans in docs/devices.md is that of the planner."""

from tests.engine.machines import BEGIN, END, MACHINES, PAGE, table


def test_the_page_has_the_plans_of_today() -> None:
    shown = PAGE.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0]
    assert shown == table(), "run python -m tests.engine.machines --write"
    assert len(MACHINES) == 12
