"""The test in docs/pipelines.md passes."""

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PAGE = (Path(__file__).parents[2] / "docs" / "pipelines.md").read_text()


def test_the_example_of_a_test_passes(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = re.findall(r"^```yaml\n(.*?)^```", PAGE, flags=re.M | re.S)[0]
    (example,) = re.findall(r"^```python\n(from moldau\.testing.*?)^```", PAGE, flags=re.M | re.S)
    (tmp_path / "revenue.yaml").write_text(pipeline)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(example, "docs/pipelines.md", "exec"), names)
    test = names["test_revenue_is_summed"]
    assert callable(test)
    test()
