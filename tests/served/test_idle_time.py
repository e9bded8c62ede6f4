"""When a server may do what no request waits for."""

from emblema.served.idle_time import CAPTURE_SHARE, CAPTURES_AT_ONCE, DENSE_SECONDS, PRESSED_SECONDS, IdleTime


def test_a_server_without_requests_is_quiet() -> None:
    idle_time = IdleTime()
    assert idle_time.captures(5.0, idle=True) == CAPTURES_AT_ONCE
    idle_time.begin(5.0)
    idle_time.end(6.0)
    assert idle_time.captures(6.0, idle=True) == CAPTURES_AT_ONCE, "nobody waited"
    rest = 1 / CAPTURE_SHARE - 1
    assert [idle_time.captures(6.0 + seconds, idle=False) for seconds in (0.0, rest - 0.1, rest + 0.1)] == [0, 0, 1]


def test_a_burst_is_left_alone() -> None:
    idle_time = IdleTime()
    for number in range(4):
        idle_time.arrive(0.1 * number)
    idle_time.look(0.4)
    assert idle_time.pressed and idle_time.captures(0.4, idle=True) == idle_time.captures(0.4, idle=False) == 0
    # Where it lasts, something is captured beside it all the same.
    for number in range(4, 30):
        idle_time.arrive(0.1 * number)
        idle_time.look(0.1 * number)
    assert idle_time.pressed and idle_time.captures(0.4 + PRESSED_SECONDS + 0.1, idle=False) == 1
    idle_time.look(2.9 + DENSE_SECONDS)
    assert not idle_time.pressed and idle_time.captures(2.9 + DENSE_SECONDS, idle=True) == CAPTURES_AT_ONCE
    for number in range(3):
        idle_time.arrive(10 + number)
        idle_time.look(10.0 + number)
        assert not idle_time.pressed, "one after another"
