"""What programs are written against: the schema of the HTTP service, and the public classes with their arguments."""

import inspect
from importlib import import_module
from tempfile import TemporaryDirectory
from typing import Any

Json = Any

PUBLIC = (
    *("engine.engine.Engine", "engine.async_engine.AsyncEngine", "session.prompt_reader.slid", "kv.chunk.Chunk"),
    *("kv.chunk.Clip", "kv.chunk.EncodedChunk", "session.decoding.Sampling", "session.replies.Reply"),
    *("session.replies.Piece", "session.requests.Usage", "session.requests.Prefill", "engine.retrieval.Retrieval"),
    *("library.static.StaticLibrary", "library.dynamic.DynamicLibrary", "library.dynamic.Snapshot"),
    *("library.items.LibraryItem", "library.items.Listing", "library.items.Hit", "media.limits.MediaLimits"),
    *("models.load.load_model", "models.selfcheck.SelfCheck", "link.policy.policy.Policy", "link.plan.LinkPlan"),
    *("link.lanes.Lane", "link.lanes.Decision", "link.strategies.base.Strategy", "link.plan.RowRange"),
    *("store.store.Store", "store.settings.StoreSettings", "store.record.Terms", "store.store.TenantStore"),
    *("store.statistics.StoreStatistics", "store.remote.redis.RedisTier", "store.remote.bucket.BucketTier"),
    *("store.remote.options.RemoteOptions", "window.window.Window", "window.budget.WindowBudget"),
    *("window.parts.PartHandle", "window.log.LogEntry", "window.necessity.NecessityCheck", "stream.stream.Stream"),
    *("stream.settings.StreamSettings", "stream.reply.StreamReply", "stream.reply.Moment"),
)


WORDED = ("description", "summary", "title", "operationId")


def http_schema() -> Json:
    """Return the service's OpenAPI description by path, and its models, without the words of FastAPI and pydantic."""
    from emblema.serve.app import make_app
    from emblema.serve.settings import ServeSettings

    with TemporaryDirectory() as folder:
        schema = make_app(ServeSettings.read(store=folder)).openapi()
    parts = schema.get("components", {})
    found = {"paths": schema["paths"], "schemas": parts.get("schemas", {}), "keys": parts.get("securitySchemes", {})}
    return {name: _unworded(part) for name, part in found.items()}


def _unworded(value: Json) -> Json:
    if isinstance(value, dict):
        return {name: _unworded(part) for name, part in value.items() if name not in WORDED}
    return [_unworded(part) for part in value] if isinstance(value, list) else value


def public_names() -> Json:
    """Return by public name its arguments and those of its methods; errors by name with what they derive from."""
    import emblema
    from emblema import errors

    said: dict[str, Json] = {"emblema": sorted(emblema.__all__)}
    said["errors"] = {
        name: [base.__name__ for base in kind.__bases__]
        for name, kind in sorted(vars(errors).items())
        if inspect.isclass(kind) and kind.__module__ == errors.__name__
    }
    for path in PUBLIC:
        module, _, name = path.rpartition(".")
        found = getattr(import_module(f"emblema.{module}"), name)
        said[path] = _members(found) if inspect.isclass(found) else _arguments(found)
    return said


def _members(kind: type) -> Json:
    """Return the arguments of a class and of its public methods; other public members by their kind."""
    said: dict[str, Json] = {"": _arguments(kind)}
    for name, _ in inspect.getmembers(kind):
        if name.startswith("_"):
            continue
        own = inspect.getattr_static(kind, name)
        own = getattr(own, "__func__", own)
        said[name] = _arguments(own) if inspect.isfunction(own) else "attribute"
    return said


def _arguments(called: Any) -> Json:
    """Return the names of what is called with, marked as in a signature; a `?` follows what may be left out."""
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):
        return "no signature"
    marks = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return [
        ("keyword " if one.kind is inspect.Parameter.KEYWORD_ONLY else "")
        + marks.get(one.kind, "")
        + one.name
        + ("" if one.default is inspect.Parameter.empty else "?")
        for one in signature.parameters.values()
        if one.name != "self"
    ]
