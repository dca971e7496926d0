// Products by the chosen expert, a task a work group. The importing file brings `compute_task`, which all
// threads of the group call, and what lib/experts/task wants.
// @import lib/experts/task

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let task = task_of(group_index(group, groups));
    if task.is_there {
        compute_task(task, lane);
    }
}
