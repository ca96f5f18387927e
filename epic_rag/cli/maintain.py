"""`epic-rag verify | prune | export | import`: looking after a store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from epic_rag.cli.guard import PARTLY, guarded
from epic_rag.cli.options import Json, Store
from epic_rag.cli.output import print_json

if TYPE_CHECKING:
    from epic_rag.kvstore.scrub import Progress
    from epic_rag.kvstore.store import KVStore

_SHOWN = 20
"""Damaged or left out blobs that are listed for people; JSON has them all."""


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.command(name="verify")(guarded(verify_command))
    app.command(name="prune")(guarded(prune_command))
    app.command(name="export")(guarded(export_command))
    app.command(name="import")(guarded(import_command))


def verify_command(
    store: Store = None,
    quarantine: Annotated[
        bool, typer.Option("--quarantine", help="Take damaged blobs out of use, so that the next ingest encodes them.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check every byte of every stored chunk and profile.

    Exit code 0: all are good; 1: some are damaged; 2: the store could not be checked.
    """
    from epic_rag import config
    from epic_rag.kvstore.uri import mask_uri

    uri = _address(store)
    with _opened(uri, config.store_key()) as opened, _bar("check", quiet=as_json) as progress:
        report = opened.verify(progress, quarantine=quarantine)
    if as_json:
        print_json(
            {
                "store": mask_uri(uri),
                "checked": report.checked,
                "damaged": _named(report.damaged),
                "unreadable": _named(report.unreadable),
                "quarantined": quarantine,
            }
        )
    else:
        _list("damaged", report.damaged)
        _list("not readable here", report.unreadable)
        unreadable = f", {len(report.unreadable)} not readable here" if report.unreadable else ""
        typer.echo(f"checked: {report.checked}, {len(report.damaged)} damaged{unreadable}")
        if report.damaged and not quarantine:
            typer.echo("mend: `epic-rag verify --quarantine`, then ingest again")
    if report.damaged:
        raise typer.Exit(PARTLY)


def prune_command(
    store: Store = None,
    budget: Annotated[
        str | None, typer.Option(help="Remove what is used least until the store takes this size, such as 500MB.")
    ] = None,
    profile: Annotated[
        str | None, typer.Option(help="Remove the chunks of this encoding profile (first digits, see stats).")
    ] = None,
    unused: Annotated[bool, typer.Option("--unused", help="Remove chunks of passages no longer in the index.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    as_json: Json = False,
) -> None:
    """Make a store smaller. What is asked for again is encoded again.

    The least used are those that the address's replacement (lru, lfu or gdsf) lets go first.
    """
    from dataclasses import asdict

    from epic_rag import config
    from epic_rag.errors import ConfigError
    from epic_rag.kvstore.uri import mask_uri, parse_size
    from epic_rag.maintenance import PruneOptions, prune

    budget_bytes = None if budget is None else parse_size(budget)
    if budget is not None and budget_bytes is None:
        raise ConfigError(f"--budget {budget}: expected a size such as 500MB or 8GiB")
    options = PruneOptions(profile=profile, unused=unused, budget_bytes=budget_bytes, dry_run=dry_run)
    uri = _address(store)
    with _opened(uri, config.store_key()) as opened, _bar("remove", quiet=as_json) as progress:
        report = prune(opened, options, progress)
    if as_json:
        print_json({"store": mask_uri(uri), "dry_run": dry_run, **asdict(report)})
        return
    why = ", ".join(f"{count} by --{name}" for name, count in report.removed.items() if count) or "none"
    typer.echo(f"{'would remove' if dry_run else 'removed'}: {why}, {_megabytes(report.removed_bytes)}")
    typer.echo(f"{'would keep' if dry_run else 'kept'}: {report.kept}, {_megabytes(report.kept_bytes)}")
    if report.undecided:
        typer.echo(f"undecided: {report.undecided}, kept: of another tokenizer than the index's, or encoded alone")


def export_command(
    destination: Annotated[str, typer.Argument(help="The store to copy to.", show_default=False)],
    store: Store = None,
    seal: Annotated[
        bool, typer.Option("--seal", help="Take over a store written without EPIC_RAG_STORE_KEY, which you trust.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Copy chunks and profiles into another store; what it has already is passed over.

    Exit code 0: all is there; 1: something was left out; 2: it was not done, run it again to go on.
    """
    _copy(_address(store), destination, as_json=as_json, seal=seal)


def import_command(
    source: Annotated[str, typer.Argument(help="The store to copy from.", show_default=False)],
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Copy chunks and profiles from another store; what is here already is passed over.

    Exit code 0: all is there; 1: something was left out; 2: it was not done, run it again to go on.
    """
    _copy(source, _address(store), as_json=as_json)


def _copy(source_uri: str, target_uri: str, *, as_json: bool, seal: bool = False) -> None:
    from epic_rag import config
    from epic_rag.kvstore.transfer import copy_store
    from epic_rag.kvstore.uri import mask_uri, open_store

    began = perf_counter()
    with (
        _opened(source_uri, None if seal else config.store_key()) as source,
        open_store(target_uri, config.store_key()) as target,
        _bar("copy", quiet=as_json) as progress,
    ):
        report = copy_store(source, target, progress, seal=seal)
    seconds = perf_counter() - began
    if as_json:
        print_json(
            {
                "source": mask_uri(source_uri),
                "target": mask_uri(target_uri),
                "copied": report.copied,
                "present": report.present,
                "copied_bytes": report.copied_bytes,
                "left_out": _named(report.left_out),
                "seconds": seconds,
            }
        )
    else:
        _list("left out", report.left_out)
        typer.echo(
            f"copied: {report.copied}, {_megabytes(report.copied_bytes)}, {report.present} were there already, "
            f"{len(report.left_out)} left out, {seconds:.1f} s"
        )
    if report.left_out:
        raise typer.Exit(PARTLY)


def _address(store: str | None) -> str:
    from epic_rag.settings import configured

    return configured({"store": store}).store


def _opened(uri: str, secret: bytes | None) -> KVStore:
    """Open a store that must be there."""
    from epic_rag.kvstore.uri import open_store
    from epic_rag.places import require_store

    require_store(uri)
    return open_store(uri, secret)


@contextmanager
def _bar(label: str, *, quiet: bool) -> Iterator[Progress | None]:
    """A progress bar on standard error; nothing when `quiet` or not at a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bars(*columns, TimeRemainingColumn(), console=console, transient=True) as bars:
        task = bars.add_task(label, total=None)

        def tell(done: int, total: int) -> None:
            bars.update(task, completed=done, total=total)

        yield tell


def _list(what: str, blobs: Sequence[tuple[str, str]]) -> None:
    for name, reason in blobs[:_SHOWN]:
        typer.secho(f"{what}: {name}: {reason}", fg="yellow", err=True)
    if len(blobs) > _SHOWN:
        typer.secho(f"{what}: and {len(blobs) - _SHOWN} more; --json lists them all", fg="yellow", err=True)


def _named(blobs: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"name": name, "reason": reason} for name, reason in blobs]


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:.1f} MB"
