"""The seam between deciding and doing: what an executor is.

Knows no executor; the torch one lives in `engine`, the one on the virtual clock in `replay`.
"""

from __future__ import annotations

from typing import Protocol

from twinpool.scheduling.plan import StepPlan, StepResult


class Executor(Protocol):
    """Carries out step plans, one after the other."""

    def execute(self, plan: StepPlan) -> StepResult:
        """Carry out the actions, then the forward step, of one plan.

        Args:
            plan: The plan; its arrays are read during the call and not kept.

        Returns:
            One result per lane, in the plan's order. A fault of one lane is that lane's `error`;
            an exception means that the whole step failed.

        Changes:
            Rows and slots named in the plan, and nothing else.
        """
        ...

    def forget(self, request_id: int) -> None:
        """Drop whatever is kept for a request that has ended; unknown ids are ignored."""
        ...
