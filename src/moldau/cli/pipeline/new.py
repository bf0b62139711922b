"""`moldau pipeline new`: a file to begin with."""

from pathlib import Path
from typing import Annotated

import typer

from moldau.cli.arguments import name as checked_name
from moldau.cli.cluster_access import CommandError, output
from moldau.cli.spark.arguments import told_plainly
from moldau.pipelines.form.texts import SLUG_RULE, is_slug
from moldau.pipelines.shipped import TEMPLATES, template


def _known(given: str) -> str:
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
            callback=_known,
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
    with told_plainly():
        if not is_slug(name):
            raise CommandError(f"{name!r} cannot be a name: {SLUG_RULE}.")
        file = Path(f"{name}.py" if python else f"{name}.yaml")
        if file.exists() and not force:
            raise CommandError(f"{file} is there already: choose another name, or add --force.")
        try:
            file.write_text(template(begin_with, name, python=python))
        except OSError as error:
            raise CommandError(f"{file} cannot be written: {error.strerror}") from None
    output.print(f"{file} is written. What next:", markup=False)
    output.print(f"  moldau pipeline check {file}   is everything there, is the SQL right?", markup=False)
    output.print(f"  moldau pipeline run {file}     until Ctrl-C", markup=False)
