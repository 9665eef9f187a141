/* side_doors.h: the addresses beside the API: explanations, feedback, the policy. Each answers at
 * once, from the loop thread; replies are bounded (about 4 KB a prompt of a request, 8 KB for the
 * policy).
 *
 *   GET  /v1/requests/{id}    why that request was answered as it was (percent-encoded id)
 *   POST /v1/feedback         {"id", "label" and/or "accepted"}: at most SIDE_DOOR_BODY_BYTES;
 *                             unknown members are refused by name
 *   GET  /v1/policy           the policy as it stands
 *   POST /v1/policy/promote   publish the candidate; POST /v1/policy/revert: go back. Only over the
 *                             Unix socket, whose permissions say who may; else 403
 */
#ifndef LAC_IO_SIDE_DOORS_H
#define LAC_IO_SIDE_DOORS_H

#include "io/server_state.h"

enum { SIDE_DOOR_BODY_BYTES = 16 * 1024 };

/* `id`: what stands in the address behind the last slash. */
void side_door_explain(struct server *s, struct connection *c, const char *id);
void side_door_feedback(struct server *s, struct connection *c);
void side_door_policy(struct server *s, struct connection *c, enum io_policy_action action);

#endif
