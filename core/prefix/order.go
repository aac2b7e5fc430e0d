package prefix

// Order decides which record is evicted next. Records are small integers that
// are reused after Remove. Implementations allocate only in Add, and only to
// grow.
//
// Least recently used is what the specification asks for (C-36, C-41); a policy
// that learns reuse intervals fits behind the same five methods.
type Order interface {
	Add(record int32)         // new, or most recent again after Remove
	Touch(record int32)       // used now
	Remove(record int32)      // evicted
	First() int32             // the next victim, -1 = none
	After(record int32) int32 // the victim after this one, -1 = none
}
