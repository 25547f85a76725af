-- Times are milliseconds after 1970 in UTC. Flags are 0 or 1. Columns named
-- body, data or *_json hold JSON of the words in package appliance.

-- What the file as a whole must remember, such as the site's first ids.
CREATE TABLE meta (
  key   TEXT PRIMARY KEY,
  value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE tenants (
  id         TEXT PRIMARY KEY,
  parent_id  TEXT REFERENCES tenants(id), -- NULL for root alone
  name       TEXT NOT NULL,
  state      TEXT NOT NULL CHECK (state IN ('active', 'suspended', 'deleted')),
  created_at INTEGER NOT NULL,
  CHECK ((parent_id IS NULL) = (id = 'root'))
) STRICT, WITHOUT ROWID;
CREATE INDEX tenants_by_parent ON tenants(parent_id);

CREATE TABLE sites (
  id              TEXT PRIMARY KEY,
  owner_tenant_id TEXT NOT NULL REFERENCES tenants(id),
  kind            TEXT NOT NULL CHECK (kind IN ('custom', 'shared', 'dedicated')),
  name            TEXT NOT NULL,
  region          TEXT NOT NULL,
  created_at      INTEGER NOT NULL,
  UNIQUE (owner_tenant_id, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE pools (
  id                  TEXT PRIMARY KEY,
  owner_tenant_id     TEXT NOT NULL REFERENCES tenants(id),
  site_id             TEXT NOT NULL REFERENCES sites(id),
  class               TEXT NOT NULL,
  gpu_model           TEXT NOT NULL,
  sharing             TEXT NOT NULL,
  agent               TEXT NOT NULL,
  provider_account_id TEXT NOT NULL DEFAULT '',
  name                TEXT NOT NULL DEFAULT '',
  policy              TEXT NOT NULL, -- byte for byte as given
  version             INTEGER NOT NULL CHECK (version >= 1),
  created_at          INTEGER NOT NULL,
  archived_at         INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX pools_by_owner ON pools(owner_tenant_id, id);
CREATE UNIQUE INDEX pools_by_name ON pools(owner_tenant_id, name) WHERE name <> '' AND archived_at IS NULL;

CREATE TABLE pool_offers (
  pool_id             TEXT NOT NULL REFERENCES pools(id),
  tenant_id           TEXT NOT NULL REFERENCES tenants(id),
  include_descendants INTEGER NOT NULL,
  priority            INTEGER NOT NULL CHECK (priority BETWEEN -1000 AND 1000),
  on_budget_exceeded  TEXT NOT NULL CHECK (on_budget_exceeded IN ('none', 'stop-new', 'drain')),
  created_at          INTEGER NOT NULL,
  PRIMARY KEY (pool_id, tenant_id)
) STRICT, WITHOUT ROWID;

-- What IAM knows of a pool for a tenant: a row for the owner and for each
-- offered tenant. A tenant sees the pools that it has a row for.
CREATE TABLE pool_authz (
  tenant_id TEXT NOT NULL REFERENCES tenants(id),
  pool_id   TEXT NOT NULL REFERENCES pools(id),
  gpu_model TEXT NOT NULL,
  class     TEXT NOT NULL,
  sharing   TEXT NOT NULL,
  region    TEXT NOT NULL,
  owned     INTEGER NOT NULL,
  PRIMARY KEY (tenant_id, pool_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX pool_authz_by_pool ON pool_authz(pool_id);

-- used is the sum of the live charges, in the same transaction.
CREATE TABLE quotas (
  tenant_id TEXT NOT NULL REFERENCES tenants(id),
  pool_id   TEXT NOT NULL REFERENCES pools(id),
  resource  TEXT NOT NULL,
  max       INTEGER NOT NULL CHECK (max BETWEEN 0 AND 2147483647),
  used      INTEGER NOT NULL CHECK (used >= 0),
  PRIMARY KEY (tenant_id, pool_id, resource)
) STRICT, WITHOUT ROWID;
CREATE INDEX quotas_by_pool ON quotas(pool_id);

CREATE TABLE nodes (
  id              TEXT PRIMARY KEY,
  pool_id         TEXT NOT NULL REFERENCES pools(id),
  machine_id      TEXT NOT NULL,
  hostname        TEXT NOT NULL,
  role            TEXT NOT NULL CHECK (role IN ('host', 'dedicated')),
  control         TEXT NOT NULL CHECK (control IN ('platform', 'tenant-owned', 'tenant-controlled')),
  state           TEXT NOT NULL,
  hold            TEXT NOT NULL DEFAULT '' CHECK (hold IN ('', 'cordoned', 'draining')), -- what an operator set
  simulated       INTEGER NOT NULL,
  local           INTEGER NOT NULL, -- the machine that the control plane runs on
  credential_hash TEXT NOT NULL,
  spec_version    INTEGER NOT NULL, -- the pool's version that spec_json and the counters were made from
  inventory_hash  TEXT NOT NULL,
  joined_at       INTEGER NOT NULL,
  removed_at      INTEGER,
  -- last, so that a start reads what precedes them alone
  labels_json     TEXT NOT NULL,
  conditions_json TEXT NOT NULL,
  units_json      TEXT NOT NULL,
  checks_json     TEXT NOT NULL,
  spec_json       TEXT NOT NULL  -- the NodeSpec without its bindings and generation
) STRICT, WITHOUT ROWID;
CREATE INDEX nodes_by_pool ON nodes(pool_id, id);
CREATE UNIQUE INDEX nodes_by_machine ON nodes(machine_id) WHERE removed_at IS NULL;
CREATE UNIQUE INDEX nodes_by_credential ON nodes(credential_hash);

-- The last inventory of each node, apart from its row since it is large.
CREATE TABLE node_inventories (
  node_id TEXT PRIMARY KEY REFERENCES nodes(id),
  body    TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- What the placer has to know of each node, made from its row, its pool and its
-- inventory whenever one of these changes. What like machines share stands once
-- in node_shapes, under its hash.
CREATE TABLE node_shapes (
  hash TEXT PRIMARY KEY,
  body TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE node_facts (
  node_id    TEXT PRIMARY KEY REFERENCES nodes(id),
  shape      TEXT NOT NULL REFERENCES node_shapes(hash),
  attributes TEXT NOT NULL,
  own        TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- What changes with each booking, apart from the node's wide row: resources is
-- a JSON array of {resource, total, allocated, overcommit}, where allocated is
-- the sum of the live bookings in the same transaction; generation is that of
-- the NodeSpec, bindings included.
CREATE TABLE node_ledgers (
  node_id    TEXT PRIMARY KEY REFERENCES nodes(id),
  generation INTEGER NOT NULL,
  resources  TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE reservations (
  id         TEXT PRIMARY KEY,
  tenant_id  TEXT NOT NULL,
  pool_id    TEXT NOT NULL,
  state      TEXT NOT NULL CHECK (state IN ('pending', 'placed', 'active', 'ended', 'failed')),
  queue      INTEGER NOT NULL, -- order of creation: the sequence number of its first event
  expires_at INTEGER,
  body       TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX reservations_by_tenant ON reservations(tenant_id, id);
CREATE INDEX reservations_live ON reservations(pool_id, queue) WHERE state IN ('pending', 'placed', 'active');

-- Every booked atom, so that the file itself refuses to book one twice.
CREATE TABLE atoms (
  node_id        TEXT NOT NULL,
  atom           TEXT NOT NULL,
  reservation_id TEXT NOT NULL,
  PRIMARY KEY (node_id, atom)
) STRICT, WITHOUT ROWID;

-- Stored in the transaction that caused them. reader_id is a second tenant
-- that may read the event: the other side of an offer, the owner of the pool.
-- actor and policies are the audit trail of the write.
CREATE TABLE events (
  seq       INTEGER PRIMARY KEY,
  type      TEXT NOT NULL,
  tenant_id TEXT NOT NULL,
  reader_id TEXT NOT NULL DEFAULT '',
  pool_id   TEXT NOT NULL DEFAULT '',
  to_pool   INTEGER NOT NULL DEFAULT 0, -- whoever sees the pool may read it
  subject   TEXT NOT NULL,
  at        INTEGER NOT NULL,
  data      TEXT NOT NULL,
  actor     TEXT NOT NULL,
  policies  TEXT NOT NULL DEFAULT ''
) STRICT;

-- Writes that were denied: there is no event to carry their trail.
CREATE TABLE denials (
  seq       INTEGER PRIMARY KEY,
  at        INTEGER NOT NULL,
  actor     TEXT NOT NULL,
  address   TEXT NOT NULL,
  action    TEXT NOT NULL,
  tenant_id TEXT NOT NULL,
  subject   TEXT NOT NULL,
  policies  TEXT NOT NULL
) STRICT;

CREATE TABLE keys (
  id           TEXT PRIMARY KEY,
  tenant_id    TEXT NOT NULL REFERENCES tenants(id),
  name         TEXT NOT NULL,
  role         TEXT NOT NULL,
  secret_hash  TEXT NOT NULL UNIQUE,
  created_at   INTEGER NOT NULL,
  expires_at   INTEGER,
  last_used_at INTEGER,
  revoked_at   INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX keys_by_tenant ON keys(tenant_id, id);
