"""How bytes on the disk look: records, tables and references, encoded and decoded. No I/O."""
