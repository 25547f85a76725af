-- The last reboot that was asked for on a node.
CREATE TABLE reboots (
  node_id TEXT PRIMARY KEY REFERENCES nodes(id),
  body    TEXT NOT NULL
) STRICT, WITHOUT ROWID;
