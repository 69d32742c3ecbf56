"""Long random walks over a prefix cache and its naive twin: histories that examples do not reach.

Compare after every operation, and have everything back in the end.
"""

from __future__ import annotations

import random

from twin_caches import TwinCaches
from twin_requests import TwinRequests, User
from twinpool.memory.place import PlaceKind


def walk(twins: TwinCaches, rnd: random.Random, num_operations: int) -> None:
    """Many operations at random: deep histories that short examples do not reach."""
    requests = TwinRequests(twins)
    prompts: list[tuple[int, ...]] = [()]

    def tokens(low: int, high: int) -> tuple[int, ...]:
        return tuple(rnd.randint(0, 2) for _ in range(rnd.randint(low, high)))

    for _ in range(num_operations):
        dice = rnd.random()
        users = requests.users
        if len(users) > 8:
            requests.end(rnd.choice(users))
        elif requests.waiting and rnd.random() < 0.2:
            verb = rnd.choice(["look", "touch", "admit", "admit", "admit", "forget"])
            getattr(requests, verb)(rnd.choice(requests.waiting))
        elif dice < 0.25 or not users:
            base = rnd.choice(prompts[-12:])
            prompt = (base[: rnd.randint(0, len(base))] + tokens(1, 8))[:30]
            if base and rnd.random() < 0.3:
                # The same again, as a retry or a burst of equal prompts brings it.
                prompt = base
            prompts.append(prompt)
            waiting = requests.arrive(rnd.choice(["", "", "", "x"]), prompt)
            if rnd.random() < 0.7:
                requests.admit(waiting)
        elif dice < 0.55:
            user = rnd.choice(users)
            places = {rnd.randint(1, 20) for _ in range(rnd.randint(0, 3))}
            first_to_go = rnd.random() < 0.4
            may_evict = rnd.random() < 0.7
            more = tokens(0, 5) if rnd.random() < 0.5 else ()
            requests.extend(
                user,
                more,
                places,
                may_evict=may_evict,
                first_to_go=first_to_go,
                kind=rnd.choice(list(PlaceKind)),
                generation=rnd.randint(0, 4),
            )
            if rnd.random() < 0.3:
                requests.roll(user)
            prompts.append(user.tokens[:30])
        elif dice < 0.75:
            requests.end(rnd.choice(users))
        elif dice < 0.85:
            getattr(requests, rnd.choice(["copy_match", "copy_match", "roll", "claim"]))(
                rnd.choice(users)
            )
        elif dice < 0.89:
            rows = twins.take_rows(rnd.randint(1, 30))
            if rows is not None:
                twins.spare_rows.append(rows)
        elif dice < 0.93:
            slots = twins.take_slot(may_evict=True)
            if slots is not None:
                twins.spare_slots.append(slots)
        elif dice < 0.96 and twins.spare_rows:
            twins.give_rows(twins.spare_rows.pop())
        elif dice < 0.99 and twins.spare_slots:
            twins.give_slot(twins.spare_slots.pop())
        elif dice > 0.995:
            twins.flush()
        requests.check()
    requests.close()


def serve(twins: TwinCaches, rnd: random.Random, num_requests: int) -> None:
    """Sessions that go on, fork, retry and end, few at a time: most of what is cached could go."""
    requests = TwinRequests(twins)
    histories: list[tuple[int, ...]] = [()]

    def tokens(low: int, high: int) -> tuple[int, ...]:
        return tuple(rnd.randint(0, 2) for _ in range(rnd.randint(low, high)))

    def compute(user: User) -> None:
        places = [len(user.tokens) - 1, user.branch, rnd.randint(1, 50)]
        requests.copy_match(user)
        requests.extend(
            user,
            tokens(0, 3),
            set(rnd.sample(places, rnd.randint(0, 3))),
            may_evict=True,
            first_to_go=rnd.random() < 0.2,
            kind=rnd.choice(list(PlaceKind)),
            generation=rnd.randint(0, 4),
        )
        requests.check()

    for _ in range(num_requests):
        base = rnd.choice(histories[-12:]) if rnd.random() < 0.8 else ()
        if rnd.random() < 0.2 or len(base) > 50:
            base = base[: rnd.randint(0, len(base))]
        more = tokens(0, 6) if rnd.random() < 0.7 else ()
        requests.arrive("", base + more or tokens(1, 3))
        while len(requests.waiting) > rnd.randint(0, 4):
            waiting = rnd.choice(requests.waiting)
            if rnd.random() < 0.1:
                requests.forget(waiting)
            else:
                compute(requests.admit(waiting))
        while len(requests.users) > rnd.randint(0, 3):
            user = rnd.choice(requests.users)
            compute(user)
            requests.roll(user)
            requests.end(user)
            histories.append(user.tokens)
        for waiting in requests.waiting:
            requests.look(waiting)
        requests.check()
    requests.close()
