"""Virtual event loop, and deferred work."""

import asyncio
import pickle
from math import inf

import pytest

from p2pfl.errors import RunError
from p2pfl.queries import Evaluate, Loss, Mean, NodeQuery, Train
from p2pfl.sim.simulation.batching import BatchedTrainer, Batcher
from p2pfl.sim.simulation.clock import DeadlockError, run, virtual_loop


def now():
    return asyncio.get_running_loop().time()


def test_virtual_loop_jumps_to_the_next_timer():
    async def main():
        await asyncio.sleep(5)
        await asyncio.sleep(1e9)
        await asyncio.sleep(1e-9)
        return now()

    assert run(main()) == 5 + 1e9 + 1e-9


def test_virtual_loop_sleeps_years_immediately():
    async def main():
        await asyncio.sleep(10 * 365 * 86400)
        return now()

    assert run(main()) == 10 * 365 * 86400


def test_timers_of_equal_time_run_in_order_of_creation():
    async def main():
        order = []
        loop = asyncio.get_running_loop()
        for k in range(100):
            loop.call_at(7.0, order.append, k)
        loop.call_at(3.0, order.append, "first")
        await asyncio.sleep(8)
        return order

    assert run(main()) == ["first", *range(100)]


def test_cancelled_timer_does_not_run_or_delay():
    async def main():
        loop = asyncio.get_running_loop()
        handle = loop.call_later(5, pytest.fail)
        assert handle.when() == 5
        handle.cancel()
        assert handle.cancelled()
        await asyncio.sleep(6)

    run(main())


def test_virtual_loop_supports_asyncio_tools():
    async def main():
        queue, done = asyncio.Queue(), []

        async def worker(name):
            done.append((name, await queue.get(), now()))

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(worker("a"))
            tasks.create_task(worker("b"))
            for item in range(2):
                await asyncio.sleep(1)
                queue.put_nowait(item)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.5):
                await asyncio.Event().wait()
        results = await asyncio.gather(asyncio.to_thread(sum, [1, 2]), asyncio.sleep(1, "slept"))
        return done, results, now()

    assert run(main()) == ([("a", 0, 1.0), ("b", 1, 2.0)], [3, "slept"], 5.5)


def test_executor_runs_jobs_immediately():
    async def main():
        loop = asyncio.get_running_loop()
        assert await loop.run_in_executor(None, lambda: loop.time()) == 0
        with pytest.raises(ZeroDivisionError):
            await loop.run_in_executor(None, lambda: 1 / 0)

    run(main())


def test_endless_wait_raises_deadlock_with_task_names():
    async def main():
        await asyncio.sleep(3)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(asyncio.Event().wait(), name="alice waits for bob")
            tasks.create_task(asyncio.sleep(inf), name="bob sleeps for ever")

    with pytest.raises(
        DeadlockError, match=r"at 3 s .* 3 tasks wait and no event is left: .*alice waits for bob, bob sleeps for ever"
    ):
        run(main())


def test_deadlock_error_can_be_pickled():
    error = pickle.loads(pickle.dumps(DeadlockError("deadlock at 3 s")))
    assert isinstance(error, RunError)
    assert str(error) == "deadlock at 3 s"


def test_error_in_a_callback_ends_the_run():
    async def main():
        asyncio.get_running_loop().call_later(1, lambda: 1 / 0)
        await asyncio.sleep(2)

    with pytest.raises(ZeroDivisionError):
        run(main())


def test_unretrieved_error_ends_the_run():
    async def main():
        asyncio.get_running_loop().call_exception_handler({"message": "lost", "exception": KeyError("x")})
        await asyncio.sleep(1)

    with pytest.raises(KeyError):
        run(main())


# Batching


class ComputeBackend:
    """Backend that records batches; a result is (kind, node)."""

    def __init__(self):
        self.batches = []

    def compute(self, jobs):
        kind = jobs[0].query.name
        self.batches.append((now(), kind, [job.node for job in jobs]))
        return [(kind, job.node) for job in jobs]


def batched(main):
    loop, backend = virtual_loop(), ComputeBackend()
    return backend, run(main(Batcher(backend, loop)), loop)


def test_batcher_computes_pending_jobs_together():
    async def main(batcher):
        async def one(node, begins, seconds):
            await asyncio.sleep(begins)
            result = await batcher.ask(NodeQuery(node, Train(None, 1)), seconds)
            return result, now()

        return await asyncio.gather(one(2, 0, 5), one(0, 1, 10), one(1, 4, 1), one(3, 6, 1))

    backend, results = batched(main)
    assert backend.batches == [(5.0, "train", [0, 1, 2]), (7.0, "train", [3])]
    assert results == [(("train", 2), 5.0), (("train", 0), 11.0), (("train", 1), 5.0), (("train", 3), 7.0)]


def test_batch_is_due_with_its_earliest_job():
    async def main(batcher):
        jobs = [batcher.ask(NodeQuery(k, Train(None, 1)), seconds) for k, seconds in enumerate((9, 3, 5))]
        await asyncio.gather(*jobs)

    backend, _ = batched(main)
    assert backend.batches == [(3.0, "train", [0, 1, 2])]


def test_due_loss_does_not_split_batch_of_trainings():
    async def main(batcher):
        trainings = [batcher.ask(NodeQuery(k, Train(None, 1)), 5) for k in range(3)]
        await asyncio.sleep(1)
        await batcher.ask(NodeQuery(7, Loss([])))
        assert now() == 1
        await batcher.ask(NodeQuery(7, Mean([], [])))
        await asyncio.gather(*trainings)

    backend, _ = batched(main)
    assert backend.batches == [(1.0, "loss", [7]), (1.0, "mean", [7]), (5.0, "train", [0, 1, 2])]


def test_batcher_joins_requests_of_one_instant():
    async def main(batcher):
        async def one(node):
            await asyncio.sleep(0)
            await asyncio.sleep(2)
            await asyncio.sleep(0)
            await batcher.ask(NodeQuery(node, Loss([])))

        await asyncio.gather(*(one(node) for node in range(5)))

    backend, _ = batched(main)
    assert backend.batches == [(2.0, "loss", [0, 1, 2, 3, 4])]


def test_evaluations_wait_for_next_batch_unless_awaited():
    async def main(batcher):
        unwatched = batcher.ask(NodeQuery(1, Evaluate([], ())))
        await asyncio.sleep(1)
        assert not unwatched.done()
        await batcher.ask(NodeQuery(0, Train(None, 1)), 1)
        assert unwatched.done()
        await batcher.ask(NodeQuery(2, Evaluate([], ())))
        assert now() == 2

    backend, _ = batched(main)
    assert backend.batches == [(2.0, "train", [0]), (2.0, "evaluate", [1]), (2.0, "evaluate", [2])]


def test_cancelled_job_does_not_delay_the_next():
    async def main(batcher):
        trainer = BatchedTrainer(batcher, 0, 2.0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await trainer.submit(Train(None, 1, epochs=3))
        await trainer.submit(Train(None, 1))
        return now()

    assert batched(main)[1] == 3.0
