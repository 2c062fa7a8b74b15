"""What XLA's asynchronous copies cost a program: only the part that nothing running beside them hides."""

import dataclasses


@dataclasses.dataclass(slots=True)
class Clock:
    """A program's run, told in the order of its schedule; seconds. Copies go one after another, and where a part that runs
    beside them uses HBM itself they get what it leaves."""

    asked: float = 0.0  # seconds of copying that were started, and of those done
    done: float = 0.0
    ends: dict[str, float] = dataclasses.field(default_factory=dict)  # copy -> `asked` when it is through
    waits: dict[str, float] = dataclasses.field(default_factory=dict)  # copy -> what was waited for it

    def run(self, seconds: float, of_hbm: float) -> None:
        """A part keeps the core busy, and HBM for `of_hbm` of it."""
        self.done = min(self.asked, self.done + max(0.0, seconds - of_hbm))

    def start(self, name: str, seconds: float) -> None:
        """A copy sets out; `seconds` at full bandwidth."""
        self.asked += seconds
        self.ends[name] = self.asked

    def wait(self, name: str) -> None:
        """The core waits for a copy. One whose start was not seen (it lies in the last trip of a loop) is not waited for."""
        left = max(0.0, self.ends.pop(name, 0.0) - self.done)
        self.waits[name] = left
        self.done += left
