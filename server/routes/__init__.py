"""One module an endpoint family; each holds an `APIRouter` that `server.app` mounts."""
