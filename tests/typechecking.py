"""The type checker behind the shape checks: beartype, with int accepted for float as in PEP 484."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
