package store

import "sync"

// changes wakes those who wait for a commit.
type changes struct {
	mu     sync.Mutex
	all    chan struct{}
	topics map[string]chan struct{}
}

// Changed gives a channel that is closed after the next commit that wrote
// something. Take it before reading state, so that no commit falls between.
func (s *Store) Changed() <-chan struct{} {
	c := &s.changes
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all == nil {
		c.all = make(chan struct{})
	}
	return c.all
}

// ChangedIn is Changed for one topic: only a commit whose [Tx.Touch] named it
// closes the channel. Those who wait for one topic share one channel, which is
// kept until it is closed: topics are ids of things that exist, not input.
func (s *Store) ChangedIn(topic string) <-chan struct{} {
	c := &s.changes
	c.mu.Lock()
	defer c.mu.Unlock()
	ch, ok := c.topics[topic]
	if !ok {
		ch = make(chan struct{})
		if c.topics == nil {
			c.topics = map[string]chan struct{}{}
		}
		c.topics[topic] = ch
	}
	return ch
}

// tell wakes everyone and those of the topics.
func (c *changes) tell(topics []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all != nil {
		close(c.all)
		c.all = nil
	}
	if len(c.topics) == 0 {
		return
	}
	for _, t := range topics {
		if ch, ok := c.topics[t]; ok {
			close(ch)
			delete(c.topics, t)
		}
	}
}
