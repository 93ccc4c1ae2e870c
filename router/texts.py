"""The models' own texts, loaded once at the start: tokenizers and chat templates by model name."""

from __future__ import annotations

from collections.abc import Sequence

from router.config import LimitsConfig, ModelConfig
from router.errors import Problem
from router.request.client_templates import ClientTemplates
from router.request.encoders.encoder import TokenizerError
from router.request.encoders.hub import local_path
from router.request.encoders.table import Options, load_text
from router.request.text import Text
from router.request.token_cache import TokenCache


class ModelTexts:
    """Loads what the configuration's models need, and keeps it.

    Attributes:
        by_name: A text for each model that has a tokenizer.
        token_cache: What all of them remember of texts tokenised before.
    """

    def __init__(self) -> None:
        self.by_name: dict[str, Text] = {}
        self.token_cache = TokenCache()
        self.client_templates = ClientTemplates()

    def limit(self, limits: LimitsConfig) -> None:
        """Take over the configured limits: texts are loaded while the configuration is still being checked."""
        self.token_cache.limit_bytes = limits.token_cache_bytes
        self.client_templates.limit_s = limits.client_template_s

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
            options = Options(
                template_file=model.chat_template,
                defaults=model.chat_template_kwargs,
                cache=self.token_cache,
                client_templates=self.client_templates if model.allow_client_template else None,
            )
            try:
                self.by_name[model.name] = load_text(local_path(model.tokenizer, model.revision), options)
            except TokenizerError as error:
                problems.append(Problem(f"models.{position}.tokenizer", str(error)))
        return problems

    def close(self) -> None:
        """End what runs beside: the process that renders clients' own templates."""
        self.client_templates.close()
