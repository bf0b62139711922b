"""`/v1/pipelines`: the queries of pipelines that publish their progress."""

from fastapi import APIRouter

from moldau.http.v1.fields import View
from moldau.http.v1.state import State
from moldau.pipelines.runtime.report_reader import read_reports

router = APIRouter(tags=["pipelines"])


class PipelineQueryView(View):
    pipeline: str
    query: str
    state: str
    """starting, running, waiting, done, stopped, failed, or lost if a running query has stopped to report."""
    reported_ms: int
    """The time of the last report, in milliseconds since 1970."""
    started: str
    host: str
    master: str
    generation: int
    rows: int
    """Records read since the start of the run."""
    late: int
    lag: int | None
    batch: int | None
    batch_ms: int | None
    input_rate: float | None
    process_rate: float | None
    watermark: str | None
    error: str | None


class PipelineQueries(View):
    queries: list[PipelineQueryView]


@router.get("/pipelines")
async def list_pipelines(state: State) -> PipelineQueries:
    """Returns the queries of all pipelines that have published their progress within the last week."""
    reports = await read_reports(await state.client.cluster())
    now_ms = state.context.broker.platform.clock.wall_ms()
    return PipelineQueries(
        queries=[
            PipelineQueryView(
                pipeline=each.pipeline,
                query=each.query,
                state=each.state_at(now_ms),
                reported_ms=each.time_ms,
                started=each.started,
                host=each.host,
                master=each.master,
                generation=each.generation,
                rows=each.rows,
                late=each.late,
                lag=each.lag,
                batch=each.batch,
                batch_ms=each.batch_ms,
                input_rate=each.input_rate,
                process_rate=each.process_rate,
                watermark=each.watermark,
                error=each.error,
            )
            for each in reports
        ]
    )
