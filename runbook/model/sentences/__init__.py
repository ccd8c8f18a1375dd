"""What is said to a person, as a value: a code with its parameters. The sentence is made of it in `report/` alone
(`report.vocabulary.sentences.in_words`), so that no code can look into it.

A room says what it has to say by the members of its own enum (`of_levers.py` beside this module): the value of a member
is how the sentence reads, with the names of its parameters.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema


class Wording(Enum):
    """Base of the rooms' enums. A parameter may have a format (`{share:.1%}`): `{held:GiB}` or `{held:.1GiB}` of bytes,
    `{names:, }` what joins the items of a list, `{question:?}` a question that goes on, `{told:.}` a sentence that
    does."""

    def __call__(self, **values: object) -> Sentence:
        return Sentence(self, tuple(values.items()))


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence, or a part of one; false where it says nothing. Its parameters may be sentences, too."""

    code: Wording
    values: tuple[tuple[str, object], ...] = ()

    def __bool__(self) -> bool:
        return self != NOTHING

    def __str__(self) -> str:
        raise TypeError(f"{self.code.name} is put into words in report/ alone")

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        """In JSON the sentence itself, as the context of the serialization makes it (`in_words`)."""
        from pydantic_core import core_schema

        def text(sentence: Sentence, info: core_schema.SerializationInfo[Any]) -> str:
            return str(info.context(sentence)) if info.context is not None else str(dict(sentence.values)["text"])

        return core_schema.no_info_after_validator_function(
            as_written, core_schema.str_schema(), serialization=core_schema.plain_serializer_function_ser_schema(
                text, info_arg=True, return_schema=core_schema.str_schema(),
            ),
        )


class Plain(Wording):
    """What has no words of its own."""

    AS_WRITTEN = "{text}"
    """As it stands in a playbook's document, in a stored incident, or was said by a person."""
    LIST = "{parts:; }"
    SENTENCES = "{parts: }"
    """Those of the parts that say something."""


def as_written(text: object) -> Sentence:
    """What somebody else has put into words."""
    return Sentence(Plain.AS_WRITTEN, (("text", str(text)),))


NOTHING = as_written("")


def joined(parts: Iterable[Sentence]) -> Sentence:
    """Those that say something, as one."""
    told = tuple(part for part in parts if part)
    return Plain.LIST(parts=told) if told else NOTHING
