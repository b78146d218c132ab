"""Slots: a limit on the work in progress that does not wait for what stands still."""

import asyncio

from p2pfl.protocols.rate_limit import Slots
from p2pfl.sim.simulation.clock import run


def test_pieces_of_low_rank_come_first_and_others_in_order():
    async def main():
        slots, order = Slots(1, 10.0), []

        async def piece(name, rank):
            async with slots.slot(rank):
                order.append(name)
                await asyncio.sleep(1.0)

        async with asyncio.TaskGroup() as tasks:
            for name, rank in [("first", 5), ("late", 2), ("later", 2), ("soon", 1)]:
                tasks.create_task(piece(name, rank))
        assert order == ["first", "soon", "late", "later"]
        assert asyncio.get_running_loop().time() == 4.0

    run(main())


def test_piece_that_takes_long_goes_on_without_its_slot():
    async def main():
        slots, ended = Slots(2, 3.0), []
        begun = []

        async def piece(name, seconds):
            async with slots.slot():
                begun.append((name, asyncio.get_running_loop().time()))
                await asyncio.sleep(seconds)
            ended.append(name)

        async with asyncio.TaskGroup() as tasks:
            for name, seconds in [("a", 100.0), ("b", 100.0), ("c", 1.0), ("d", 1.0), ("e", 1.0)]:
                tasks.create_task(piece(name, seconds))
        assert begun == [("a", 0.0), ("b", 0.0), ("c", 3.0), ("d", 3.0), ("e", 4.0)]
        assert ended == ["c", "d", "e", "a", "b"]

    run(main())


def test_cancelled_piece_leaves_its_slot_to_others():
    async def main():
        slots, done = Slots(1, 10.0), []

        async def piece(name):
            async with slots.slot():
                await asyncio.sleep(1.0)
                done.append(name)

        tasks = {name: asyncio.create_task(piece(name)) for name in "abcd"}
        await asyncio.sleep(0.5)
        tasks["b"].cancel()  # it waits
        tasks["a"].cancel()  # it holds the slot
        await asyncio.sleep(0)
        tasks["c"].cancel()  # its turn has come
        await asyncio.wait(tasks.values())
        assert done == ["d"]
        async with asyncio.timeout(0.1), slots.slot():
            pass

    run(main())
