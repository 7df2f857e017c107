"""A budget of bytes: what is lent never exceeds it, and nobody is passed over."""

from __future__ import annotations

import asyncio

from headwater.broker.limits.budget import Budget, Hold


def test_no_more_is_lent_than_there_is() -> None:
    async def scenario() -> int:
        budget, most = Budget(100), 0

        async def borrow(size: int) -> None:
            nonlocal most
            taken = await budget.take(size)
            most = max(most, budget.used)
            await asyncio.sleep(0)
            budget.give(taken)

        await asyncio.gather(*(borrow(size) for size in [30, 60, 90, 10, 100, 1, 45] * 20))
        assert (budget.used, budget.waiting) == (0, 0)
        return most

    assert asyncio.run(scenario()) == 100


def test_a_large_wish_is_not_passed_over_by_small_ones() -> None:
    async def scenario() -> list[str]:
        budget, order = Budget(10), list[str]()
        first = await budget.take(8)

        async def borrow(name: str, size: int) -> None:
            await budget.take(size)
            order.append(name)

        tasks = [asyncio.create_task(borrow(name, size)) for name, size in (("large", 9), ("small", 1))]
        await asyncio.sleep(0)
        assert order == []
        budget.give(first)
        await asyncio.gather(*tasks)
        return order

    assert asyncio.run(scenario()) == ["large", "small"]


def test_a_wish_for_more_than_all_gets_all() -> None:
    assert asyncio.run(Budget(10).take(1000)) == 10


def test_who_gives_up_waiting_holds_up_nobody() -> None:
    async def scenario() -> None:
        budget = Budget(10)
        taken = await budget.take(5)
        impatient = asyncio.create_task(budget.take(10))
        patient = asyncio.create_task(budget.take(5))
        await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.wait([impatient])
        assert await patient == 5
        budget.give(taken)
        budget.give(5)
        late = asyncio.create_task(budget.take(10))
        await asyncio.sleep(0)
        assert late.done()

    asyncio.run(scenario())


def test_a_hold_shrinks_and_is_given_back_once() -> None:
    async def scenario() -> None:
        large, small = Budget(100), Budget(50)
        hold = Hold()
        await hold.take((large, small), 80)
        assert (large.used, small.used) == (80, 50)
        hold.shrink(20)
        assert (large.used, small.used) == (20, 20)
        hold.give_back()
        hold.give_back()
        assert (large.used, small.used) == (0, 0)

    asyncio.run(scenario())
