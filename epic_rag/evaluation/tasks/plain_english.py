"""Made-up plain English, for a haystack where there is no corpus: harmless statements without numbers or codes."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from epic_rag.loading.document import LoadedDocument, make_document

_SEED = "plain English"
_NUM_DOCUMENTS = 60
_NUM_PARAGRAPHS = 6
_NUM_SENTENCES = 8

_PLACES = (
    "Alderwick", "Birchford", "Coldharbour", "Dunmere", "Eastlow", "Fernley", "Glenholt", "Hartsend", "Inverday",
    "Juniper Hill", "Kestrel Bay", "Larkfield", "Moorgate Cross", "Netherby", "Oakhanger", "Penbrook", "Quarley",
    "Rushmoor", "Stonebeck", "Thornaby Green",
)  # fmt: skip
_PEOPLE = (
    "the baker", "the postman", "an old teacher", "the ferryman", "a young gardener", "the librarian", "the doctor",
    "a visiting painter", "the stationmaster", "the miller", "two sisters", "a retired sailor", "the choir",
)  # fmt: skip
_THINGS = (
    "bread", "letters", "apples", "maps", "lanterns", "wool", "honey", "old photographs", "seeds", "clay pots",
    "blankets", "firewood", "bicycles", "umbrellas", "books", "candles",
)  # fmt: skip
_SPOTS = (
    "the market hall", "the harbour", "the old bridge", "the school", "the mill", "the railway station", "the orchard",
    "the town hall", "the river bank", "the lighthouse", "the chapel", "the square",
)  # fmt: skip
_TIMES = (
    "in the early morning", "after the first snow", "on market days", "during the summer", "when the fog lifts",
    "late in the evening", "before the harvest", "in most winters", "on the longest day", "while the rain lasts",
)  # fmt: skip
_QUALITIES = (
    "quiet",
    "crowded",
    "cheerful",
    "windy",
    "well kept",
    "dusty",
    "bright",
    "almost empty",
    "cold",
    "friendly",
)
_SENTENCES = (
    "{Person} of {place} often brought {thing} to {spot} {time}.",
    "{Time}, {spot} in {place} was {quality} and smelled of {thing}.",
    "People said that {person} kept {thing} near {spot}.",
    "Nobody in {place} could remember a time when {spot} had been so {quality}.",
    "The road from {place} to {other} passes {spot} and is {quality} {time}.",
    "{Person} preferred {thing} to {thing2}, at least {time}.",
    "Children carried {thing} from {spot} to {spot2} and back again.",
    "Visitors from {other} found {place} rather {quality}.",
    "{Time} {person} repaired the roof of {spot} with help from {other}.",
    "There was hardly any {thing} left in {place}, so {person} went to {other}.",
    "The walls of {spot} were painted again, although they had looked {quality} enough.",
    "Somebody had left {thing} and {thing2} on the steps of {spot}.",
    "{Person} talked about {thing} for hours and then walked home past {spot}.",
    "A small path leads from {spot} to {spot2}; it is {quality} {time}.",
)


def plain_documents() -> Iterator[LoadedDocument]:
    """The same documents every time, about 60,000 tokens in all."""
    draw = Random(_SEED)
    for number in range(_NUM_DOCUMENTS):
        place = _PLACES[number % len(_PLACES)]
        paragraphs = (" ".join(_sentence(draw, place) for _ in range(_NUM_SENTENCES)) for _ in range(_NUM_PARAGRAPHS))
        title = f"Notes from {place}, part {number // len(_PLACES) + 1}"
        yield make_document(f"plain-{number}", title, "\n\n".join(paragraphs))


def _sentence(draw: Random, place: str) -> str:
    person, time = draw.choice(_PEOPLE), draw.choice(_TIMES)
    thing, thing2 = draw.sample(_THINGS, 2)
    spot, spot2 = draw.sample(_SPOTS, 2)
    return draw.choice(_SENTENCES).format(
        place=place,
        other=draw.choice([name for name in _PLACES if name != place]),
        person=person,
        Person=person[0].upper() + person[1:],
        time=time,
        Time=time[0].upper() + time[1:],
        thing=thing,
        thing2=thing2,
        spot=spot,
        spot2=spot2,
        quality=draw.choice(_QUALITIES),
    )
