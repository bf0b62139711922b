"""Base class of workloads: clients that run until they are stopped."""

import asyncio
import random
from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(eq=False)
class Workload:
    MUST_PROGRESS: ClassVar[bool] = True
    """Whether the workload always has work, so that a lack of progress is a violation."""

    name: str
    randomness: random.Random
    progress: int = field(default=0, init=False)
    """The number of completed operations."""
    progress_target: int = field(default=0, init=False)
    """The progress that the workload must make before it may be stopped."""
    _stopping: bool = field(default=False, init=False)

    @property
    def is_stuck(self) -> bool:
        return self.progress < self.progress_target

    def stop(self) -> None:
        """Ends the workload after the current step."""
        self._stopping = True

    async def run(self) -> None:
        raise NotImplementedError

    async def _sleep_after_error(self) -> None:
        await asyncio.sleep(self.randomness.uniform(0.001, 0.3))
