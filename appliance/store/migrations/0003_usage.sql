-- What a reservation held, unchanged, from one instant to another. Written when
-- it ends and where what it counts as changes; what is live is counted from its
-- row. A second writing of one interval changes nothing.
CREATE TABLE usage_intervals (
  reservation_id TEXT NOT NULL,
  from_at        INTEGER NOT NULL,
  to_at          INTEGER NOT NULL,
  tenant_id      TEXT NOT NULL,
  pool_id        TEXT NOT NULL,
  meters_json    TEXT NOT NULL, -- amounts by meter
  PRIMARY KEY (reservation_id, from_at)
) STRICT, WITHOUT ROWID;
CREATE INDEX usage_by_tenant ON usage_intervals(tenant_id, to_at);
CREATE INDEX usage_by_pool ON usage_intervals(pool_id, to_at);

CREATE TABLE rates (
  tenant_id TEXT NOT NULL REFERENCES tenants(id), -- the owner of the pools
  meter     TEXT NOT NULL,
  per_unit  REAL NOT NULL CHECK (per_unit >= 0),
  PRIMARY KEY (tenant_id, meter)
) STRICT, WITHOUT ROWID;

CREATE TABLE budgets (
  tenant_id TEXT NOT NULL REFERENCES tenants(id),
  period    TEXT NOT NULL CHECK (period IN ('month', 'total')),
  amount    REAL NOT NULL CHECK (amount >= 0),
  set_by    TEXT NOT NULL,
  exceeded  INTEGER NOT NULL, -- whether that has been told
  PRIMARY KEY (tenant_id, period)
) STRICT, WITHOUT ROWID;
