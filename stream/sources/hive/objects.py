"""The objects of a metastore: the names of their Thrift fields, and a struct as readable JSON. Pure.

The JSON image of an object has Thrift's own field names (``hive_metastore.thrift`` of Hive 4.0.1 and 4.2.0). A field
that has no name here stands under its number. Strings that are no text, and binary fields, are ``{"base64": "…"}``.
The struct itself is kept beside it (docs/decisions/0020-whole-objects-as-thrift.md).
"""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final

import msgspec

from stream.sources.hive.structs import (
    LIST,
    MAP,
    SET,
    STRING,
    STRUCT,
    ListValue,
    MapValue,
    Struct,
    ThriftError,
    plain_number,
    plain_string,
    text_of,
)
from stream.wire.canonical import UNDECODABLE

_STATISTICS: Final = "low high numNulls numDVs bitVectors! histogram!"
_CONSTRAINT: Final = "enable_cstr validate_cstr rely_cstr"
_FIELDS: Final = {
    "FieldSchema": "name type comment",
    "Order": "col order",
    "SkewedInfo": "skewedColNames skewedColValues skewedColValueLocationMaps",
    "SerDeInfo": "name serializationLib parameters description serializerClass deserializerClass serdeType",
    "StorageDescriptor": "cols:FieldSchema location inputFormat outputFormat compressed numBuckets serdeInfo:SerDeInfo "
    "bucketCols sortCols:Order parameters skewedInfo:SkewedInfo storedAsSubDirectories",
    "PrivilegeGrantInfo": "privilege createTime grantor grantorType grantOption",
    "PrincipalPrivilegeSet": "userPrivileges:PrivilegeGrantInfo groupPrivileges:PrivilegeGrantInfo "
    "rolePrivileges:PrivilegeGrantInfo",
    "CreationMetadata": "catName dbName tblName tablesUsed validTxnList materializationTime sourceTables:SourceTable",
    "SourceTable": "table:Table insertedCount updatedCount deletedCount",
    "FileMetadata": "type version data!",
    "ObjectDictionary": "values!",
    "Table": "tableName dbName owner createTime lastAccessTime retention sd:StorageDescriptor "
    "partitionKeys:FieldSchema parameters viewOriginalText viewExpandedText tableType "
    "privileges:PrincipalPrivilegeSet temporary rewriteEnabled creationMetadata:CreationMetadata catName ownerType "
    "writeId isStatsCompliant colStats:ColumnStatistics accessType requiredReadCapabilities "
    "requiredWriteCapabilities id fileMetadata:FileMetadata dictionary:ObjectDictionary txnId",
    "Partition": "values dbName tableName createTime lastAccessTime sd:StorageDescriptor parameters "
    "privileges:PrincipalPrivilegeSet catName writeId isStatsCompliant colStats:ColumnStatistics "
    "fileMetadata:FileMetadata",
    "Catalog": "name description locationUri createTime",
    "Database": "name description locationUri parameters privileges:PrincipalPrivilegeSet ownerName ownerType "
    "catalogName createTime managedLocationUri type connector_name remote_dbname",
    "Function": "functionName dbName className ownerName ownerType createTime functionType resourceUris:ResourceUri "
    "catName",
    "ResourceUri": "resourceType uri",
    "ColumnStatistics": "statsDesc:ColumnStatisticsDesc statsObj:ColumnStatisticsObj isStatsCompliant engine",
    "ColumnStatisticsDesc": "isTblLevel dbName tableName partName lastAnalyzed catName",
    "ColumnStatisticsObj": "colName colType statsData:ColumnStatisticsData",
    "ColumnStatisticsData": "booleanStats:Booleans longStats:Longs doubleStats:Doubles stringStats:Strings "
    "binaryStats:Binaries decimalStats:Decimals dateStats:Dates timestampStats:Timestamps",
    "Booleans": "numTrues numFalses numNulls bitVectors!",
    "Longs": _STATISTICS.replace("low high", "lowValue highValue"),
    "Doubles": _STATISTICS.replace("low high", "lowValue highValue"),
    "Strings": "maxColLen avgColLen numNulls numDVs bitVectors!",
    "Binaries": "maxColLen avgColLen numNulls bitVectors!",
    "Decimals": _STATISTICS.replace("low high", "lowValue:Decimal highValue:Decimal"),
    "Dates": _STATISTICS.replace("low high", "lowValue:Date highValue:Date"),
    "Timestamps": _STATISTICS.replace("low high", "lowValue:Timestamp highValue:Timestamp"),
    "Decimal": "unscaled! - scale",
    "Date": "daysSinceEpoch",
    "Timestamp": "secondsSinceEpoch",
    "AggrStats": "colStats:ColumnStatisticsObj partsFound isStatsCompliant",
    "SQLAllTableConstraints": "primaryKeys:SQLPrimaryKey foreignKeys:SQLForeignKey "
    "uniqueConstraints:SQLUniqueConstraint notNullConstraints:SQLNotNullConstraint "
    "defaultConstraints:SQLDefaultConstraint checkConstraints:SQLCheckConstraint",
    "SQLPrimaryKey": f"table_db table_name column_name key_seq pk_name {_CONSTRAINT} catName",
    "SQLForeignKey": "pktable_db pktable_name pkcolumn_name fktable_db fktable_name fkcolumn_name key_seq update_rule "
    f"delete_rule fk_name pk_name {_CONSTRAINT} catName",
    "SQLUniqueConstraint": f"catName table_db table_name column_name key_seq uk_name {_CONSTRAINT}",
    "SQLNotNullConstraint": f"catName table_db table_name column_name nn_name {_CONSTRAINT}",
    "SQLDefaultConstraint": f"catName table_db table_name column_name default_value dc_name {_CONSTRAINT}",
    "SQLCheckConstraint": f"catName table_db table_name column_name check_expression dc_name {_CONSTRAINT}",
}
"""Struct → its fields in the order of their numbers. ``:`` names the struct in a field, ``!`` marks a binary one."""


class _Field(msgspec.Struct, frozen=True):
    name: str
    of: str
    binary: bool


def _field(text: str) -> _Field:
    name, _, of = text.partition(":")
    return _Field(name.rstrip("!"), of, name.endswith("!"))


_BY_NUMBER: Final = {
    name: {number: _field(text) for number, text in enumerate(fields.split(), 1)} for name, fields in _FIELDS.items()
}
_json: Final = msgspec.json.Encoder(order="sorted").encode
_UNNAMED: Final = _Field("", "", binary=False)


def plain_struct(found: Struct, name: str) -> dict[str, Any]:
    """The struct ``name`` as a JSON object: field name → value."""
    fields = _BY_NUMBER.get(name, {})
    plain = {}
    for number, (kind, value) in found.items():
        field = fields.get(number, _UNNAMED)
        plain[field.name or str(number)] = _plain(kind, value, field)
    return plain


def _plain(kind: int, value: Any, field: _Field) -> Any:
    if kind == STRING:
        return {"base64": base64.b64encode(value).decode()} if field.binary else plain_string(value)
    if kind == STRUCT:
        return plain_struct(value, field.of)
    if kind in (LIST, SET):
        return [_plain(value.element, each, field) for each in value.values]
    if kind == MAP:
        if value.key != STRING or any(text_of(key) is None for key, _ in value.pairs):
            return [[_plain(value.key, key, _UNNAMED), _plain(value.value, each, field)] for key, each in value.pairs]
        return {text_of(key): _plain(value.value, each, field) for key, each in value.pairs}
    return plain_number(value)


def image_of(found: Struct, name: str) -> bytes:
    """The JSON image of the struct ``name``: compact, keys sorted."""
    return _json(plain_struct(found, name))


def with_binary_fields(found: Struct, name: str) -> Struct:
    """``found``, read from TJSON, with its binary fields as bytes: there they are base64. Raises `ThriftError`."""
    fields = _BY_NUMBER.get(name, {})
    return {
        number: (kind, _with_binary(kind, value, fields.get(number, _UNNAMED)))
        for number, (kind, value) in found.items()
    }


def _with_binary(kind: int, value: Any, field: _Field) -> Any:
    if kind == STRING and field.binary:
        try:
            return base64.b64decode(value + b"=" * (-len(value) % 4), validate=True)
        except binascii.Error as error:
            raise ThriftError(f"{field.name} is not base64: {error}") from error
    if kind == STRUCT:
        return with_binary_fields(value, field.of)
    if kind in (LIST, SET):
        return ListValue(value.element, [_with_binary(value.element, each, field) for each in value.values])
    if kind == MAP:
        pairs = [(key, _with_binary(value.value, each, field)) for key, each in value.pairs]
        return MapValue(value.key, value.value, pairs)
    return value


class _Column(msgspec.Struct):
    name: str = ""


class _Storage(msgspec.Struct):
    cols: list[_Column] | None = None


class _TableImage(msgspec.Struct):
    """The part of a table's JSON image that has its columns."""

    sd: _Storage | None = None


_table_image = msgspec.json.Decoder(_TableImage)


def columns_of(image: bytes) -> list[str]:
    """The names of a table's columns without partition keys, lower case; none if its JSON image has no such list."""
    try:
        storage = _table_image.decode(image).sd
    except UNDECODABLE:
        return []
    return [column.name.lower() for column in (storage and storage.cols) or ()]
