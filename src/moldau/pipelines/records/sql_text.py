"""Pieces of Spark SQL as text. Expressions are built as text because each call of PySpark's functions takes several
round trips to Java, and a plan has hundreds of them."""


def quoted(name: str) -> str:
    """A column, whatever its name."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def struct(**fields: str) -> str:
    """Of expressions, by their names."""
    return f"named_struct({', '.join(f'{literal(name)}, {value}' for name, value in fields.items())})"


def cases(*whens: tuple[str, str], otherwise: str = "NULL") -> str:
    """The expression of the first condition that holds."""
    return f"CASE {' '.join(f'WHEN {condition} THEN {value}' for condition, value in whens)} ELSE {otherwise} END"
