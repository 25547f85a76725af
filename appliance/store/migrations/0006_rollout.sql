-- How far a node has come with a policy that disrupts: a JSON
-- appliance.Rollout, empty for a node that has all of its pool's policy and is at
-- rest.
ALTER TABLE nodes ADD COLUMN rollout_json TEXT NOT NULL DEFAULT '';
CREATE INDEX nodes_rolling ON nodes(id) WHERE rollout_json <> '';

-- Whether the node's agent walls in what is booked, and says when a wall is gone.
ALTER TABLE nodes ADD COLUMN walled INTEGER NOT NULL DEFAULT 0;
CREATE INDEX nodes_walled ON nodes(id) WHERE walled = 1;

-- An atom whose reservation has ended stays here, so that the file refuses to
-- book it, until its node has said that nobody is behind the wall any more:
-- releasing is the generation of the first NodeSpec without the binding, 0 for
-- what is booked.
ALTER TABLE atoms ADD COLUMN releasing INTEGER NOT NULL DEFAULT 0;
CREATE INDEX atoms_releasing ON atoms(node_id) WHERE releasing > 0;
