"""The second stage of ``headrace job alerts``: a model of how the measures of a minute usually go together.

StandardScaler and PCA of Spark ML, with all components: the first say how measures move together, the last how far
apart those that move together ever are. A minute's distance is the mean square of its components, each in units of its
own variance (Mahalanobis), about 1 on an ordinary minute. So a minute stands out whose measures are usual one by one,
but not together. The model is made twice, the second time without the two in a hundred minutes that the first one finds
strangest: what was wrong in those days must not become usual. The threshold is a multiple of where those begin.

A model is a folder: ``pipeline-TIME`` (Spark ML's own form) and ``model.json`` with its name, the names of the
features, the threshold and what it was made of. A model of other features is refused. A new one takes the place of the
old one when ``model.json`` names it: until then, and for whoever is just reading it, the old one is there as a whole.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # its usual name

from headrace.errors import ConfigError
from headrace.spark.jobs.alerts_series import FEATURES
from headrace.spark.jobs.folder import LOCK, hold_folder
from headrace.spark.jobs.manifest import write_json

if TYPE_CHECKING:
    from pyspark.ml import PipelineModel

VERSION: Final = 1
COMPONENTS: Final = len(FEATURES)
USUAL: Final = 0.98
"""Share of the minutes that the second model is made of."""
MARGIN: Final = 5.0
"""How far above the distance of the strangest of them the threshold is."""
MIN_ROWS: Final = 500
_PIPELINE: Final = re.compile(r"pipeline(-\d+)?")
"""Name of a model's folder in ours; one of others may be there, too."""
_WAIT_S: Final = 60.0
"""For another run that saves its model."""
_MIN_VARIANCE: Final = 0.01
"""Of a component: measures that never part must not make the smallest difference an alert."""


@dataclass(frozen=True, slots=True)
class ModelNote:
    """What ``model.json`` says."""

    features: list[str]
    threshold: float
    rows: int
    variances: list[float]
    """Of each component."""
    made_ms: int
    version: int = VERSION
    pipeline: str = "pipeline"
    """Folder of the pipeline in that of the model."""


@dataclass(frozen=True, slots=True)
class AlertModel:
    """A pipeline and what is known of it."""

    pipeline: PipelineModel
    note: ModelNote


def fit(rows: DataFrame, made_ms: int) -> AlertModel:
    """Make a model of rows with a column ``features`` (array of doubles, as ``FEATURES``).

    Raises:
        ConfigError: there are too few.
    """
    from pyspark.ml.functions import array_to_vector  # noqa: PLC0415  # pyspark

    vectors = rows.select(array_to_vector(F.col("features")).alias("vector")).persist()
    try:
        count = vectors.count()
        if count < MIN_ROWS:
            raise ConfigError(
                f"{count} minutes are too few for a model, {MIN_ROWS} are needed: wait until there is more history",
                key="fit",
            )
        first, variances, edge = _fit(vectors)
        usual = _measured(first.transform(vectors)).where(_distance(variances) <= edge).select("vector")
        pipeline, variances, _ = _fit(usual)
        distances = _measured(pipeline.transform(usual)).agg(F.max(_distance(variances)).alias("most")).first()
        assert distances is not None
    finally:
        vectors.unpersist()
    threshold = MARGIN * distances["most"]
    note = ModelNote(list(FEATURES), threshold, count, variances, made_ms, pipeline=f"pipeline-{made_ms}")
    return AlertModel(pipeline, note)


def _fit(vectors: DataFrame) -> tuple[PipelineModel, list[float], float]:
    """Return a pipeline, the variance of each component, and the distance that ``USUAL`` of the rows do not pass."""
    from pyspark.ml import Pipeline  # noqa: PLC0415  # pyspark
    from pyspark.ml.feature import PCA, StandardScaler  # noqa: PLC0415  # pyspark

    scaler = StandardScaler(withMean=True, withStd=True, inputCol="vector", outputCol="scaled")
    pca = PCA(k=COMPONENTS, inputCol="scaled", outputCol="main")
    pipeline = Pipeline(stages=[scaler, pca]).fit(vectors)
    measured = _measured(pipeline.transform(vectors))
    means = measured.agg(
        *(F.mean(F.col("parts")[place] ** 2).alias(f"v{place}") for place in range(COMPONENTS))
    ).first()
    assert means is not None
    variances = [max(means[f"v{place}"], _MIN_VARIANCE) for place in range(COMPONENTS)]
    (edge,) = measured.withColumn("distance", _distance(variances)).approxQuantile("distance", [USUAL], 0.001)
    return pipeline, variances, edge


def score(model: AlertModel, rows: DataFrame) -> DataFrame:
    """Return rows with the columns ``distance``, and ``widest``: the feature that moves the distance most."""
    from pyspark.ml.functions import array_to_vector  # noqa: PLC0415  # pyspark

    measured = _measured(model.pipeline.transform(rows.withColumn("vector", array_to_vector(F.col("features")))))
    # The distance's slope along each feature, back through the components: rows of ``pc`` are features.
    components = model.pipeline.stages[1].pc.toArray().tolist()  # type: ignore[attr-defined]  # a PCAModel
    slopes = F.array(*(F.abs(_slope(weights, model.note.variances)) for weights in components))
    place = F.array_position(slopes, F.array_max(slopes)).cast("int")
    names = F.array(*(F.lit(name) for name in model.note.features))
    found = measured.withColumn("distance", _distance(model.note.variances))
    found = found.withColumn("widest", F.element_at(names, F.greatest(place, F.lit(1))))
    return found.drop("vector", "scaled", "main", "parts")


def _measured(transformed: DataFrame) -> DataFrame:
    """Add the parts of the vectors."""
    from pyspark.ml.functions import vector_to_array  # noqa: PLC0415  # pyspark

    return transformed.withColumn("parts", vector_to_array(F.col("main")))


def _slope(weights: Sequence[float], variances: Sequence[float]) -> Column:
    total: Column = F.lit(0.0)
    for place, (weight, variance) in enumerate(zip(weights, variances, strict=True)):
        total = total + F.col("parts")[place] * (weight / variance)
    return total


def _distance(variances: Sequence[float]) -> Column:
    total: Column = F.lit(0.0)
    for place, variance in enumerate(variances):
        total = total + F.col("parts")[place] ** 2 / variance
    return total / len(variances)


def require_own(folder: Path) -> None:
    """Refuse a folder whose ``model.json`` is somebody else's: no run was there, and it names no pipeline beside it.

    Raises:
        ConfigError: it is one.
    """
    note, named = folder / "model.json", _named_pipeline(folder)
    has_model = bool(named) and (folder / named / "metadata").is_dir()
    if note.exists() and not (folder / LOCK).exists() and not has_model:
        raise ConfigError(
            f"--model {folder} holds {note}, which no job has written: name a new or an empty folder", key="model"
        )


def save(model: AlertModel, folder: Path) -> None:
    """Write a model; one that is there is replaced, in one step.

    Raises:
        ConfigError, OSError: the folder cannot be written.
        FolderBusyError: another run does not let go of it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with hold_folder(folder, "model", wait_s=_WAIT_S):
        kept = {model.note.pipeline, _named_pipeline(folder)}
        model.pipeline.write().overwrite().save(str((folder / model.note.pipeline).absolute()))
        write_json(folder / "model.json", asdict(model.note))
        for old in folder.iterdir():
            if _PIPELINE.fullmatch(old.name) and old.name not in kept and (old / "metadata").is_dir():
                shutil.rmtree(old, ignore_errors=True)


def _named_pipeline(folder: Path) -> str:
    """Return which pipeline the model in a folder has, empty where there is none or its note is damaged."""
    try:
        return _read_note(folder).pipeline
    except (OSError, msgspec.DecodeError):
        return ""


def _read_note(folder: Path) -> ModelNote:
    return msgspec.json.decode((folder / "model.json").read_bytes(), type=ModelNote)


def load(folder: Path) -> AlertModel:
    """Read a model.

    Raises:
        ConfigError: there is none, it is damaged, or it is one of other features.
    """
    from pyspark.ml import PipelineModel  # noqa: PLC0415  # pyspark

    try:
        note = _read_note(folder)
    except FileNotFoundError:
        raise ConfigError(f"there is no model in {folder}: make one with --fit", key="model") from None
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"{folder}/model.json is damaged ({error}): make the model anew with --fit", key="model"
        ) from None
    if note.version != VERSION or note.features != list(FEATURES):
        raise ConfigError(
            f"the model in {folder} was made of other features ({', '.join(note.features)}): make it anew with --fit",
            key="model",
        )
    return AlertModel(PipelineModel.load(str((folder / note.pipeline).absolute())), note)
