package prefix

import "testing"

// What is not there is said not to be there: a search must not go round for ever.
func TestASearchForWhatIsNotThereEnds(t *testing.T) {
	var nodes table
	nodes.init(8)
	for id := range int32(5) {
		nodes.insert(id, 6) // one cluster, over the end of the table
	}
	for id := range int32(5) {
		if i, ok := nodes.find(id, 6); !ok || nodes.slot[i].node != id {
			t.Errorf("node %d: slot %d, %v", id, i, ok)
		}
	}
	if i, ok := nodes.find(7, 6); ok {
		t.Errorf("a node that was never inserted is in slot %d", i)
	}
	records := []record{{id: 1, live: true}, {id: 2}}
	var byID recordIndex
	byID.build(records, 1)
	for what, remove := range map[string]func(){
		"node":   func() { nodes.remove(7, 6) },
		"record": func() { byID.remove(records, 1) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("a %s that is not there was removed", what)
				}
			}()
			remove()
		}()
	}
}
