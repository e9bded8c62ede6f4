"""Settings of a server: flags, `EMBLEMA_…` variables and a TOML file, under the same names."""

import tomllib
from pathlib import Path
from typing import Any, Self

from pydantic import ByteSize, Field, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from emblema.errors import EmblemaError
from emblema.media.limits import MediaLimits

LOOPBACK = ("127.0.0.1", "::1", "localhost")


class ServeSettings(BaseSettings):
    """Settings of a server. A flag wins over a variable, a variable over the file, the file over the default."""

    model_config = SettingsConfigDict(env_prefix="EMBLEMA_", extra="forbid", frozen=True)

    model: str = Field("reference", description="A bundled name, a folder or a Hugging Face id.")
    served_name: str | None = Field(None, description="What clients call the model; its own name by default.")
    host: str = Field("127.0.0.1", description="Address to listen at; keys are required on any but loopback.")
    port: int = Field(8000, ge=0, le=65_535, description="Port; 0 takes a free one.")
    store: Path = Field(Path("emblema-store"), description="Folder of chunks, files and keys.")
    redis: str | None = Field(None, description="Address of a Redis server behind the disk, which servers may share.")
    files_redis: str | None = Field(
        None, description="Address of a Redis server that keeps files and quotas for servers with folders of their own."
    )
    files_bucket: str | None = Field(
        None, description="Bucket of the bytes of those files, s3://…; by default they are in files_redis too."
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
    waiting: int = Field(256, gt=0, description="Requests that may wait; more are refused with a time to come back.")
    batch_rows: int = Field(
        262_144, gt=0, description="Rows decoded together: the longest sequence times their number."
    )
    deadline: float = Field(600.0, gt=0, allow_inf_nan=False, description="Seconds until a reply is given up.")
    grace: float = Field(10.0, ge=0, allow_inf_nan=False, description="Seconds that replies have to end at shutdown.")
    allowed_hosts: tuple[str, ...] = Field((), description="Private hosts that media may be fetched from.")

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
            problem = error.errors()[0]
            place = ".".join(map(str, problem["loc"]))
            raise EmblemaError(f"the setting {place} is not right: {problem['msg']}") from error
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
    def media_limits(self) -> MediaLimits:
        """Bounds on media of requests and uploads."""
        return MediaLimits(
            file_bytes=self.file_bytes,
            download_bytes=min(self.file_bytes, MediaLimits().download_bytes),
            allowed_hosts=frozenset(self.allowed_hosts),
            text_bytes=self.text_bytes,
        )
