"""Guard a function that charges a card: each payment is charged once, and repeats return the stored receipt.

Leased mode, the default: a run that raised is given back, so the next delivery tries again.
Run it: python examples/handler.py
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import TypedDict

from onceonly import Once


class Payment(TypedDict):
    id: str
    cents: int


class Receipt(TypedDict):
    charge: str
    cents: int


class Provider:
    """Stands in for a payment provider's client. Its first call fails."""

    def __init__(self) -> None:
        self.calls = 0

    def charge(self, cents: int, *, idempotency_key: str) -> Receipt:
        self.calls += 1
        if self.calls == 1:
            raise ConnectionError("the provider cannot be reached")
        return {"charge": f"ch-{idempotency_key}", "cents": cents}


def guarded_charge(once: Once, provider: Provider) -> Callable[[Payment], Receipt]:
    @once.handler(key="$.id")
    def charge(payment: Payment) -> Receipt:
        # Should we die right after this call, the next run repeats it: the provider knows the key again.
        return provider.charge(payment["cents"], idempotency_key=payment["id"])

    return charge


def main() -> None:
    provider = Provider()
    payment: Payment = {"id": "pay-17", "cents": 4000}
    with (
        tempfile.TemporaryDirectory() as directory,
        Once(f"sqlite:///{directory}/payments.db", group="billing", window="payment") as once,
    ):
        charge = guarded_charge(once, provider)
        try:
            charge(payment)
        except ConnectionError as error:
            print("deliver again:", error)  # deliver again: the provider cannot be reached
        print(charge(payment))  # {'charge': 'ch-pay-17', 'cents': 4000}
        print(charge(payment))  # {'charge': 'ch-pay-17', 'cents': 4000}
    print("calls to the provider:", provider.calls)  # calls to the provider: 2


if __name__ == "__main__":
    main()
