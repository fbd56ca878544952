"""The counters of ``semlock.stats()`` as instruments of OpenTelemetry.

::

    import semlock.otel

    semlock.otel.register()

It needs the extra: ``pip install semlock[otel]``.
"""

from __future__ import annotations

from semlock._events import stats

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["register"]


def register(meter: Any = None) -> Callable[[], None]:
    """Have the locks of this process measured by a meter, by default the global one's.

    Counters such as ``semlock.acquired`` and ``semlock.waited`` are observed whenever they are
    collected; the histograms ``semlock.wait.duration`` and ``semlock.held.duration`` are fed as
    it happens.  Returns a function that ends the feeding.
    """
    return stats.register(meter)
