"""Settings of a server: flags, `EMBLEMA_…` variables and a TOML file, under the same names."""

import json
import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, ByteSize, Field, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from emblema.errors import EmblemaError
from emblema.media.limits import MediaLimits
from emblema.serve.held_bytes import BODY_COPIES, ByteBounds

LOOPBACK = ("127.0.0.1", "::1", "localhost")


def _listed(value: Any) -> Any:
    """Return what a list's text says: names with commas between them, or JSON."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        try:
            return json.loads(value)
        except ValueError as error:
            raise ValueError(f"{value} is no JSON: give names with commas between them") from error
    return tuple(name for name in map(str.strip, value.split(",")) if name)


_GONE = ("files_redis", "files_bucket")
Names = Annotated[tuple[str, ...], BeforeValidator(_listed)]
"""A setting of several names: `a,b`, JSON, or a list of the file."""

Origins = Annotated[tuple[Annotated[str, Field(pattern=r"^https?://[^/\s*]+$")], ...], BeforeValidator(_listed)]
HostNames = Annotated[tuple[Annotated[str, Field(pattern=r"^[a-z0-9.-]+$")], ...], BeforeValidator(_listed)]


class ServeSettings(BaseSettings):
    """Settings of a server. A flag wins over a variable, a variable over the file, the file over the default."""

    model_config = SettingsConfigDict(env_prefix="EMBLEMA_", extra="forbid", frozen=True, enable_decoding=False)

    model: str = Field("reference", description="A bundled name, a folder or a Hugging Face id.")
    served_name: str | None = Field(None, description="What clients call the model; its own name by default.")
    host: str = Field("127.0.0.1", description="Address to listen at; keys are required on any but loopback.")
    port: int = Field(8000, ge=0, le=65_535, description="Port; 0 takes a free one.")
    store: Path = Field(Path("emblema-store"), description="Folder of chunks, files and keys.")
    redis: str | None = Field(None, description="Address of a Redis server behind the disk, which servers may share.")
    bucket: str | None = Field(
        None, description="Bucket behind the disk in its place: s3://…, gs://…, az://… (credentials: the environment)."
    )
    several: bool = Field(False, description="Whether other processes serve the same folder: deletions reach them.")
    deletion_seconds: float = Field(
        5.0, gt=0, allow_inf_nan=False, description="Within which deletions reach all servers of a folder or of redis."
    )
    device_bytes: ByteSize | None = Field(
        None, gt=0, description="Rows in memory; by default a quarter of what is free."
    )
    device: str | None = Field(None, description="Where to run: cpu, cuda, cuda:1, mps; a GPU by default.")
    dtype: str | None = Field(None, description="float32, bfloat16 or float16; the model's own by default.")
    strategy: str = Field("auto", description="Of requests that name none.")
    body_bytes: ByteSize = Field(ByteSize(64 * 2**20), gt=0, description="Largest body of a request.")
    file_bytes: ByteSize = Field(ByteSize(128 * 2**20), gt=0, description="Largest file.")
    quota_bytes: ByteSize = Field(ByteSize(4 * 2**30), gt=0, description="Bytes of one tenant's files together.")
    caches: int = Field(1_000, gt=0, description="Caches of one tenant.")
    cache_bytes: ByteSize = Field(ByteSize(4 * 2**30), gt=0, description="Rows and patches of one tenant's caches.")
    ask_start: str = Field("<search>", description="Text with which a model begins to ask a collection; empty: none.")
    ask_end: str = Field("</search>", min_length=1, description="Text with which it ends.")
    ask_before: str = Field("", description="Text before what was found; control tokens may be spelled.")
    ask_after: str = Field("", description="Text after what was found; control tokens may be spelled.")
    parts: int = Field(512, gt=0, description="Parts with media in one request, at most.")
    text_bytes: ByteSize = Field(ByteSize(2**20), gt=0, description="Text of one request.")
    request_bytes: ByteSize = Field(ByteSize(512 * 2**20), gt=0, description="Decoded media of one request.")
    tenant_bytes: ByteSize = Field(
        ByteSize(2**30), gt=0, description="Decoded media of one tenant's requests at a time; half of it for bodies."
    )
    server_bytes: ByteSize = Field(
        ByteSize(2 * 2**30), gt=0, description="Decoded media of all requests at a time; half of it for bodies."
    )
    connections: int = Field(1_000, gt=0, description="Connections at a time.")
    waiting: int = Field(256, gt=0, description="Requests that may wait; more are refused with a time to come back.")
    batch_rows: int = Field(
        262_144, gt=0, description="Rows decoded together: the longest sequence times their number."
    )
    deadline: float = Field(600.0, gt=0, allow_inf_nan=False, description="Seconds until a reply is given up.")
    grace: float = Field(10.0, ge=0, allow_inf_nan=False, description="Seconds that replies have to end at shutdown.")
    allowed_hosts: Names = Field((), description="Private hosts that media may be fetched from.")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="What is less is not logged.")
    allowed_origins: Origins = Field(
        (), description="Origins whose pages may use the server, as http://localhost:3000."
    )
    engine: str | None = Field(None, description="Address of an engine that serves in the place of a model here.")
    ssl_certfile: Path | None = Field(None, description="Certificate of the server, for https.")
    ssl_keyfile: Path | None = Field(None, description="Key of that certificate.")
    host_names: HostNames = Field(
        (), description="Names beside localhost that a server on loopback answers to, as host.docker.internal."
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)

    @classmethod
    def read(cls, config: Path | None = None, **flags: Any) -> Self:
        """Return the settings of flags (None: not given), variables and a file; `EmblemaError` where one is wrong."""
        given = {name: value for name, value in flags.items() if value is not None}
        if config is not None and not config.is_file():
            raise EmblemaError(f"there is no file {config}: name a TOML file with --config")
        source = type(cls.__name__, (cls,), {"model_config": SettingsConfigDict(toml_file=config)})
        try:
            return source(**given)
        except ValidationError as error:
            raise EmblemaError(_said(error, tuple(cls.model_fields))) from error
        except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise EmblemaError(f"{config} cannot be read: {error}") from error

    @property
    def name(self) -> str:
        """What clients call the model."""
        return self.served_name or Path(self.model).name

    @property
    def folder(self) -> Path:
        """Where the server keeps what is not the store's: keys and files."""
        return self.store / "serve"

    @property
    def loopback(self) -> bool:
        """Whether only this machine reaches the server."""
        return self.host in LOOPBACK

    @property
    def byte_bounds(self) -> ByteBounds:
        """Bounds on what requests hold; each leaves room for the largest request, and for the largest body."""
        body = 2 * BODY_COPIES * max(self.body_bytes, self.file_bytes)
        tenant = max(self.request_bytes, self.tenant_bytes, body)
        return ByteBounds(self.request_bytes, tenant, max(tenant, self.server_bytes))

    @property
    def media_limits(self) -> MediaLimits:
        """Bounds on media of requests and uploads."""
        return MediaLimits(
            file_bytes=self.file_bytes,
            download_bytes=min(self.file_bytes, MediaLimits().download_bytes),
            allowed_hosts=frozenset(self.allowed_hosts),
            text_bytes=self.text_bytes,
        )


def _said(error: ValidationError, known: tuple[str, ...]) -> str:
    """Return what is wrong with settings, in one line."""
    problem = error.errors()[0]
    name, message = str(problem["loc"][0]), problem["msg"].removeprefix("Value error, ")
    if problem["type"] != "extra_forbidden":
        return f"the setting {name} is not right: {message}"
    if name in _GONE:
        return f"the setting {name} is gone: servers that share files share the folder of `store`"
    near = get_close_matches(name, known, n=3)
    meant = f" (did you mean {' or '.join(near)}?)" if near else ""
    return f"there is no such setting: {name}{meant}; `emblema serve --print-config` shows all"
