"""``GET /v1/bytes/{uri}``: files below configured roots, read through the byte cache."""
