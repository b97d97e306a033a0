"""The layers of the settings, each a source of pydantic-settings: file, environment, flags."""

from __future__ import annotations

from typing import Any

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from freshet.sections.secrets import without_replaced


class Earlier(PydanticBaseSettingsSource):
    """A layer below others: a secret of which a later one has the text, or another file, does not count here."""

    def __init__(self, settings_cls: type[BaseSettings], layer: PydanticBaseSettingsSource) -> None:
        super().__init__(settings_cls)
        self._layer = layer

    def __call__(self) -> dict[str, Any]:
        """What the layer has, without that."""
        return without_replaced(self._layer(), self.current_state)

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """As the layer."""
        return self._layer.get_field_value(field, field_name)
