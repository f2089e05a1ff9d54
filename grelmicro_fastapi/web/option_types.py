"""What types the options of guards have: said here, where Python would say it later, and of something else."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, cast

from fastapi import params

from grelmicro_fastapi.coordination.backend import check_source
from grelmicro_fastapi.coordination.names import check_name


def _is_number(given: object) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool)


def _are_dependencies(given: object) -> bool:
    if not isinstance(given, list | tuple):
        return False
    return all(callable(one) or isinstance(one, params.Depends) for one in cast("Sequence[object]", given))


_TYPES: Final[Mapping[str, tuple[Callable[[object], bool], str]]] = {
    "required": (lambda given: isinstance(given, bool), "True or False"),
    "wait": (lambda given: given is None or _is_number(given), "a number of seconds, or None to wait without end"),
    "requires": (_are_dependencies, "a list of functions or Depends(...)"),
    "key": (lambda given: given is None or callable(given), "a function that returns the name"),
    "status": (lambda given: isinstance(given, int), "the status of an error, 400 to 599"),
    "etag": (lambda given: isinstance(given, bool), "True or False"),
}


def refuse_other_types(guard: object, names: Iterable[object]) -> None:
    """Raise `ValueError` if a name is no text, or an option of the guard has another type than it can have."""
    for name in names:
        check_name(name)
    for option, (fits, words) in _TYPES.items():
        given: object = getattr(guard, option)
        if not fits(given):
            raise ValueError(f"{guard!r}: {option}= must be {words}")
    check_source(getattr(guard, "backend", None))


def refuse_unknown(guard: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise `ValueError` if there is an option that no guard has."""
    choices = ["required", *known]
    for option in given:
        if option not in choices:
            raise ValueError(f"{guard} has no option {option}=: choose from {', '.join(f'{one}=' for one in choices)}")
