"""`moldau pipeline new`: creates a pipeline file from a template."""

from pathlib import Path
from typing import Annotated

import typer

from moldau.cli.console import CommandError, out_console
from moldau.cli.parameters import validate_name
from moldau.cli.spark.parameters import exit_on_error
from moldau.pipelines.spec.values import SLUG_RULE, is_slug
from moldau.pipelines.templates import TEMPLATES, template


def _validate_template(template: str) -> str:
    if template not in TEMPLATES:
        raise typer.BadParameter(f"{template!r} is not one of {', '.join(TEMPLATES)}")
    return template


def pipeline_new(
    name: Annotated[str, typer.Argument(metavar="NAME", callback=validate_name, help="Pipeline name.")],
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
        bool, typer.Option("--python", help="Write Python with decorated functions instead of YAML with SQL.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", "-f", help="Overwrite an existing file.")] = False,
) -> None:
    """Create a commented pipeline file, ready to be edited and run.

    moldau pipeline new revenue

    moldau pipeline new customers --from compacted-table
    """
    with exit_on_error():
        if not is_slug(name):
            raise CommandError(f"{name!r} is not a valid name: {SLUG_RULE}.")
        file = Path(f"{name}.py" if python else f"{name}.yaml")
        if file.exists() and not force:
            raise CommandError(f"{file} already exists: choose another name, or add --force.")
        try:
            file.write_text(template(begin_with, name, python=python))
        except OSError as error:
            raise CommandError(f"Cannot write {file}: {error.strerror}") from None
    out_console.print(f"Created {file}. Next steps:", markup=False)
    out_console.print(f"  moldau pipeline check {file}   check topics, schemas and SQL", markup=False)
    out_console.print(f"  moldau pipeline run {file}     run until Ctrl-C", markup=False)
