"""The models' own texts: tokenizers and chat templates by model name, from the configuration or from agents."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from router.config import ModelConfig
from router.config_bounds import LimitsConfig
from router.errors import Problem
from router.kv.text_files import ENGINE_TEMPLATE, ENGINE_VARIABLES, set_digest
from router.request.client_templates import ClientTemplates
from router.request.encoders.encoder import TokenizerError
from router.request.encoders.hub import local_path
from router.request.encoders.table import Options, load_text
from router.request.text import Text
from router.request.token_cache import TokenCache

SHOWN_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a model's text comes from.

    Attributes:
        source: `folder` and `hub` as configured, `agent` as published; `replica`: there is none, replicas are asked.
        detail: The path or hub's name; of an agent's files the first digits of their common hash; empty for `replica`.
    """

    source: Literal["folder", "hub", "agent", "replica"]
    detail: str = ""


NOBODY = Origin("replica")


class ModelTexts:
    """Loads what the configuration's models need, takes over what agents publish, and keeps it.

    Attributes:
        by_name: A text for each model that has a tokenizer. Replaced as a whole, never changed: other threads read it.
        origins: Where each of them comes from.
        token_cache: What all of them remember of texts tokenised before.
    """

    def __init__(self) -> None:
        self.by_name: Mapping[str, Text] = {}
        self.origins: Mapping[str, Origin] = {}
        self.token_cache = TokenCache()
        self.client_templates = ClientTemplates()
        # A process of its own: clients' templates must not keep the models' waiting.
        self._unsigned_templates = ClientTemplates()

    def limit(self, limits: LimitsConfig) -> None:
        """Take over the configured limits: texts are loaded while the configuration is still being checked."""
        self.token_cache.limit_bytes = limits.token_cache_bytes
        self.client_templates.limit_s = self._unsigned_templates.limit_s = limits.client_template_s

    def load(self, models: Sequence[tuple[int, ModelConfig]]) -> list[Problem]:
        """Load each model's text.

        Args:
            models: With their positions in the file.

        Returns:
            What is wrong with those that can't be loaded.
        """
        problems = []
        for position, model in models:
            if model.tokenizer is None:
                continue
            try:
                path = local_path(model.tokenizer, model.revision)
                origin = Origin("folder" if path == model.tokenizer else "hub", str(model.tokenizer))
                self.adopt(model.name, load_text(path, self._options(model)), origin)
            except TokenizerError as error:
                problems.append(Problem(f"models.{position}.tokenizer", str(error)))
        return problems

    def load_published(self, model: ModelConfig, files: Mapping[str, bytes], is_signed: bool) -> Text:
        """Return the text that files make which agents published; it is not used yet. Takes seconds: for a thread.

        A signed registration is the operator's own word, who gave its agent the secret: its templates are run like
        those in the configuration. Without a secret whoever can write to Redis may have made them: they run in a
        process that can be killed. (A tokenizer of theirs can still be slow; such a one may as well take the prompts.)

        Args:
            model: Which has no tokenizer in the configuration; a template and variables that it has there go before.
            files: By names that `router.kv.text_files` allows; written to a folder that only this process can read,
                for as long as this takes.
            is_signed: Whether registrations are signed here.

        Raises:
            TokenizerError: They can't be used.
        """
        isolated = None if is_signed else self._unsigned_templates
        try:
            with tempfile.TemporaryDirectory(prefix="warmroute-text-") as name:
                folder = Path(name)
                for file, data in files.items():
                    (folder / file).parent.mkdir(mode=0o700, exist_ok=True)
                    (folder / file).write_bytes(data)
                template = folder / ENGINE_TEMPLATE if ENGINE_TEMPLATE in files else None
                options = self._options(model, template, isolated)
                if ENGINE_VARIABLES in files and not model.chat_template_kwargs:
                    options = replace(options, defaults=_variables(files[ENGINE_VARIABLES]))
                try:
                    return load_text(folder, options)
                except TokenizerError as error:
                    raise TokenizerError(
                        str(error).replace(f"{name}/", "").replace(name, "the model's folder")
                    ) from None
        except TokenizerError:
            raise
        except OSError as error:
            raise TokenizerError(f"they can't be written to {tempfile.gettempdir()}: {error.strerror}") from None
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # odd files make libraries raise anything; a panic of Rust code is no Exception
            raise TokenizerError(f"they can't be read: {type(error).__name__}") from None

    def adopt(self, name: str, text: Text, origin: Origin) -> None:
        """Use a text for a model from now on. Prompts that are being read keep the one that they began with."""
        self.origins = {**self.origins, name: origin}
        self.by_name = {**self.by_name, name: text}

    def staged(self) -> ModelTexts:
        """Return an empty one that shares what is remembered here: for texts that may yet be refused."""
        staged = ModelTexts()
        staged.token_cache = self.token_cache
        staged.client_templates = self.client_templates
        staged._unsigned_templates = self._unsigned_templates
        return staged

    def take_over(self, staged: ModelTexts, dropped: Sequence[str]) -> None:
        """Use what was staged from now on, and some models' texts no more."""
        for name in dropped:
            self.drop(name)
        for name, text in staged.by_name.items():
            self.adopt(name, text, staged.origins[name])

    def drop(self, name: str) -> None:
        """Have replicas asked for a model's tokens from now on."""
        self.by_name = {key: text for key, text in self.by_name.items() if key != name}
        self.origins = {key: origin for key, origin in self.origins.items() if key != name}

    def close(self) -> None:
        """End what runs beside: the processes that render templates from outside."""
        self.client_templates.close()
        self._unsigned_templates.close()

    def _options(
        self, model: ModelConfig, template: Path | None = None, isolated: ClientTemplates | None = None
    ) -> Options:
        return Options(
            template_file=model.chat_template or template,
            defaults=model.chat_template_kwargs,
            cache=self.token_cache,
            client_templates=self.client_templates if model.allow_client_template else None,
            isolated=isolated,
        )


def _variables(data: bytes) -> dict[str, Any]:
    """Return the engine's default variables; raises TokenizerError where they are no JSON object."""
    try:
        variables = json.loads(data)
    except (ValueError, RecursionError):
        variables = None
    if not isinstance(variables, dict):
        raise TokenizerError(f"{ENGINE_VARIABLES} is no JSON object")
    return variables


def published_origin(files: Mapping[str, str]) -> Origin:
    """Return the origin of a set of published files, given as file name to digest."""
    return Origin("agent", set_digest(files)[:SHOWN_DIGITS])
