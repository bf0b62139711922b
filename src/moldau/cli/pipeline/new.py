"""`moldau pipeline new`: a file to begin with."""

from pathlib import Path
from typing import Annotated

import typer

from moldau.cli.cluster_access import CommandError, out_console
from moldau.cli.parameters import name as checked_name
from moldau.cli.spark.parameters import exit_on_error
from moldau.pipelines.spec.values import SLUG_RULE, is_slug
from moldau.pipelines.templates import TEMPLATES, template


def _validate_template(given: str) -> str:
    if given not in TEMPLATES:
        raise typer.BadParameter(f"{given!r} is none of {', '.join(TEMPLATES)}")
    return given


def pipeline_new(
    name: Annotated[
        str, typer.Argument(metavar="NAME", callback=checked_name, help="What the pipeline is called.")
    ],
    begin_with: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="TEMPLATE",
            callback=_validate_template,
            help="; ".join(f"{each}: {what}" for each, what in TEMPLATES.items()) + ".",
        ),
    ] = "orders-revenue",
    python: Annotated[
        bool, typer.Option("--python", help="As Python with decorated functions, not YAML with SQL.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", "-f", help="Also over a file that is there.")] = False,
) -> None:
    """Write a pipeline file with comments, ready to be changed and run.

    moldau pipeline new revenue

    moldau pipeline new customers --from compacted-table
    """
    with exit_on_error():
        if not is_slug(name):
            raise CommandError(f"{name!r} cannot be a name: {SLUG_RULE}.")
        file = Path(f"{name}.py" if python else f"{name}.yaml")
        if file.exists() and not force:
            raise CommandError(f"{file} is there already: choose another name, or add --force.")
        try:
            file.write_text(template(begin_with, name, python=python))
        except OSError as error:
            raise CommandError(f"{file} cannot be written: {error.strerror}") from None
    out_console.print(f"{file} is written. What next:", markup=False)
    out_console.print(
        f"  moldau pipeline check {file}   is everything there, is the SQL right?", markup=False
    )
    out_console.print(f"  moldau pipeline run {file}     until Ctrl-C", markup=False)
