"""Builders of Spark SQL. SQL is used because each call of a PySpark function takes several round trips to Java."""


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def struct(**fields: str) -> str:
    return f"named_struct({', '.join(f'{literal(name)}, {value}' for name, value in fields.items())})"


def cases(*whens: tuple[str, str], otherwise: str = "NULL") -> str:
    return f"CASE {' '.join(f'WHEN {condition} THEN {value}' for condition, value in whens)} ELSE {otherwise} END"
