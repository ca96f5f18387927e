"""Which node of a Redis deployment a command goes to, and how that is found out.

redis-py has clients for sentinels and clusters, but a node that is frozen costs them one timeout for each command and
more for asking around. Here a batch that meets a dead node fails once, and as a whole.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from time import monotonic

from epic_rag.kvstore.errors import StoreUnavailableError
from epic_rag.kvstore.redis_options import Node, RedisOptions
from epic_rag.kvstore.redis_wire import Arguments, Command, Parcel, Plan, Reply, Route, T

SEARCH_SECONDS = 0.15
"""After this long no further node is asked where the others are."""


class Routes(ABC):
    """Finds the node of each command; safe for threads, since what is known is only replaced as a whole."""

    def __init__(self, options: RedisOptions) -> None:
        self._options = options

    def routed(self, plan: Plan[T]) -> Route[T]:
        """Return a route that carries out a plan."""
        try:
            batch = next(plan)
            while True:
                batch = plan.send((yield from self._exchange(batch)))
        except StopIteration as done:
            result: T = done.value
            return result

    @abstractmethod
    def search(self) -> Route[None]:
        """Find out anew where the nodes are.

        Raises:
            StoreUnavailableError: nobody who should know answers.
        """

    @abstractmethod
    def _nodes(self) -> Sequence[Node]:
        """All nodes that hold keys; none while they are unknown."""

    @abstractmethod
    def _node(self, key: str) -> Node | None:
        """The node of a key; None while it is unknown."""

    def _learn(self, reply: Exception, asked: Node) -> bool:
        """Look whether an error reply says that another node should have been asked."""
        return False

    def _exchange(self, batch: Sequence[Command]) -> Route[list[Reply]]:
        """Send a batch; where nodes turn out to have moved, search, and send that part of it once more."""
        if batch and not self._nodes():
            yield from self.search()
        replies: list[Reply] = [[] if _for_all(command) else None for command in batch]
        misled = yield from self._send(batch, range(len(batch)), replies)
        if misled:
            yield from self.search()
            for reply, asked in misled.values():
                self._learn(reply, asked)
            yield from self._send(batch, list(misled), replies)
        return replies

    def _send(
        self, batch: Sequence[Command], indices: Sequence[int], replies: list[Reply]
    ) -> Route[dict[int, tuple[Exception, Node]]]:
        """Send some commands of a batch; returns those that went to the wrong node, with what it said."""
        by_node: dict[Node, list[int]] = {}
        for i in indices:
            for node in self._targets(batch[i]):
                by_node.setdefault(node, []).append(i)
        parcels = [Parcel(node, [batch[i] for i in group]) for node, group in by_node.items()]
        answers = yield parcels
        misled = {}
        for (node, group), of_node in zip(by_node.items(), answers, strict=True):
            for i, reply in zip(group, of_node, strict=True):
                earlier = replies[i]
                if isinstance(earlier, list) and _for_all(batch[i]):
                    earlier.append((node, reply))
                    continue
                replies[i] = reply
                if isinstance(reply, Exception) and self._learn(reply, node):
                    misled[i] = (reply, node)
        return misled

    def _targets(self, command: Command) -> Sequence[Node]:
        if _for_all(command):
            return self._nodes()
        node = command.node or self._node(command.key or "")
        if node is None:
            raise StoreUnavailableError("no node of the cluster serves the slot of a key")
        return [node]

    def _ask_seeds(self, seeds: Sequence[Node], question: Arguments) -> Route[tuple[Node, Reply]]:
        """Ask one node after the other, until one answers with something else than an error."""
        began, failure = monotonic(), "no time left"
        for seed in dict.fromkeys(seeds):
            try:
                ((answer,),) = yield [Parcel(seed, [Command(question, node=seed)], seed=True)]
            except Exception as error:  # noqa: BLE001 - whatever it is, the next one may answer
                failure = f"{seed}: {error}"
            else:
                if answer and not isinstance(answer, Exception):
                    return seed, answer
                failure = f"{seed}: {answer or 'knows of none'}"
            if monotonic() - began > SEARCH_SECONDS:
                break
        raise StoreUnavailableError(f"nobody says where the data is ({failure})")


class SingleRoutes(Routes):
    """One server."""

    def search(self) -> Route[None]:
        """Do nothing: the server is where the address says."""
        yield from ()

    def _nodes(self) -> Sequence[Node]:
        return self._options.hosts

    def _node(self, key: str) -> Node:
        return self._options.hosts[0]


class SentinelRoutes(Routes):
    """The master that sentinels name."""

    def __init__(self, options: RedisOptions) -> None:
        super().__init__(options)
        self._master: Node | None = None

    def search(self) -> Route[None]:
        """Ask the sentinels for the master."""
        question = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._options.service)
        _, answer = yield from self._ask_seeds(self._options.hosts, question)
        host, port = answer if isinstance(answer, list | tuple) else ("", 0)
        self._master = Node(_text(host), int(port))

    def _nodes(self) -> Sequence[Node]:
        return [self._master] if self._master else []

    def _node(self, key: str) -> Node | None:
        return self._master

    def _learn(self, reply: Exception, asked: Node) -> bool:
        from redis.exceptions import ReadOnlyError

        return isinstance(reply, ReadOnlyError)


class ClusterRoutes(Routes):
    """The masters of a cluster, each with its share of the 16,384 slots.

    While a slot moves from one node to another, the keys that are under way count as missing.
    """

    def __init__(self, options: RedisOptions) -> None:
        super().__init__(options)
        self._slots: dict[int, Node] = {}
        self._masters: tuple[Node, ...] = ()

    def search(self) -> Route[None]:
        """Ask any node for the slots of all."""
        asked, answer = yield from self._ask_seeds([*self._masters, *self._options.hosts], ("CLUSTER", "SLOTS"))
        slots: dict[int, Node] = {}
        for first, last, (host, port, *_), *_ in answer if isinstance(answer, list) else []:
            slots |= dict.fromkeys(range(int(first), int(last) + 1), Node(_text(host) or asked.host, int(port)))
        self._slots, self._masters = slots, tuple(dict.fromkeys(slots.values()))

    def _nodes(self) -> Sequence[Node]:
        return self._masters

    def _node(self, key: str) -> Node | None:
        from redis.crc import key_slot

        return self._slots.get(key_slot(key.encode()))

    def _learn(self, reply: Exception, asked: Node) -> bool:
        from redis.exceptions import MovedError

        if not isinstance(reply, MovedError):
            return False
        node = Node(reply.host or asked.host, int(reply.port))
        self._slots = self._slots | {int(reply.slot_id): node}
        self._masters = tuple(dict.fromkeys([*self._masters, node]))
        return True


def make_routes(options: RedisOptions) -> Routes:
    """Return the routes for a kind of deployment."""
    if options.kind == "cluster":
        return ClusterRoutes(options)
    return SentinelRoutes(options) if options.kind == "sentinel" else SingleRoutes(options)


def _for_all(command: Command) -> bool:
    return command.key is None and command.node is None


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "")
